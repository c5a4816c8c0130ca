"""A link as a picture that a phone reads off the terminal."""


def render_qr_code(text: str) -> str:
    """For a camera that looks at a terminal, light on dark or dark on light."""
    from io import StringIO

    import segno

    drawn = StringIO()
    segno.make(text, error="l", micro=False).terminal(drawn, compact=True)
    return drawn.getvalue()
