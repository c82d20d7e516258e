"""Ranks that run parts of other ranks' steps."""

from dsl.session.remote import serve

__all__ = ["serve"]
