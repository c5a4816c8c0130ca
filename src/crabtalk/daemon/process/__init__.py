"""The process: its home, logs, start, main loop and end, and the commands that ask about them."""
