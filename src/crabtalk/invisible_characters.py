"""Invisible characters: those that a screen interprets, or shows as nothing or as a blank.

A person who allows a tool call must see every character of it. The daemon, the terminal and the
gateways escape the same set, each in its own notation.
"""

import unicodedata

# Control and format characters (such as U+202E), surrogates, private and unassigned code points,
# and separators; of the separators, only the ordinary space is visible enough.
INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
# Blank although their category says letter, mark or symbol: joiners, fillers, vowels without a
# shape, variation selectors (Default_Ignorable_Code_Point in Unicode), the empty Braille cell, the
# Khitan filler and the musical null notehead.
BLANK_CHARACTERS = frozenset(
    chr(code)
    for code in (
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F),
        *(0x2800, 0x3164, 0xFFA0, 0x16FE4, 0x1D159),
        *range(0xFE00, 0xFE10),
        *range(0xE0100, 0xE01F0),
    )
)


def is_invisible(character: str) -> bool:
    """Whether it is invisible, as line feeds and tabs are too: callers decide about those."""
    if " " <= character <= "~":
        return False
    return character in BLANK_CHARACTERS or unicodedata.category(character) in INVISIBLE_CATEGORIES
