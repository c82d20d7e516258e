"""The code for memory that ranks of one machine share: see `dsl.ir.shared_memory`."""

from dsl.codegen.cpu.mail import mail, mail_bytes
from dsl.codegen.cpu.reducer import reducer

__all__ = ["mail", "mail_bytes", "reducer"]
