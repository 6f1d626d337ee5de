"""Text without control characters: text comes from devices, packages and compilers."""


def printable(text: str) -> str:
    r"""Escape what would control a terminal, or reverse letters.

    Line ends and tabs stay; other characters that are not visible are written as in Python, as \x1b.
    """
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in text
    )
