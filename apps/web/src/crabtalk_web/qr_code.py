"""Renders a link as a QR code for the terminal."""


def render_qr_code(text: str) -> str:
    """Cameras can read it light on dark and dark on light."""
    from io import StringIO

    import segno

    output = StringIO()
    segno.make(text, error="l", micro=False).terminal(output, compact=True)
    return output.getvalue()
