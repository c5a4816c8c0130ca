"""Draws a link as a QR code on the terminal."""


def render_qr_code(text: str) -> str:
    """A QR code that a camera can read from a dark or light terminal."""
    from io import StringIO

    import segno

    output = StringIO()
    segno.make(text, error="l", micro=False).terminal(output, compact=True)
    return output.getvalue()
