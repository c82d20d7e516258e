"""Where Python and NumPy keep the parts of their objects, in words: for code in the language of words. See `entry_layout`."""

from __future__ import annotations

from dsl.codegen.cpu import entry_layout as layout

TYPE, DATA, RANK, DIMS, DESCR, FLAGS, MEMORY_HANDLER = (
    at // 8
    for at in (
        layout.TYPE, layout.DATA, layout.RANK, layout.DIMS, layout.DESCR, layout.FLAGS, layout.MEMORY_HANDLER,
    )
)  # fmt: skip
CARRAY, OWNDATA = layout.CARRAY, layout.OWNDATA
CONTIGUOUS = 0x101  # and aligned
HALF = 0xFFFFFFFF  # a C int, which is half a word
