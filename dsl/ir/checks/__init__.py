"""The checks behind the verifier's rules, one file per subject. `dsl.ir.verify` numbers them and states each rule."""
