"""What `python -m dsl <command>` runs, one module per command."""
