"""DownloadProgress: a bar on a terminal, and lines elsewhere."""

import pytest

from crabtalk.daemon.config.progress_bar import BAR_WIDTH, DownloadProgress, format_bar

MB = 1_000_000


def test_the_bar_fills_up() -> None:
    assert format_bar("x", 0, 100 * MB) == f"[{'.' * BAR_WIDTH}] x 0 of 100 MB"
    assert format_bar("x", 50 * MB, 100 * MB) == f"[{'#' * 12}{'.' * 12}] x 50 of 100 MB"
    assert format_bar("x", 100 * MB, 100 * MB) == f"[{'#' * BAR_WIDTH}] x 100 of 100 MB"


def test_an_unknown_size_has_no_bar() -> None:
    assert format_bar("x", 7 * MB, 0) == "x 7 MB"


def test_without_a_terminal_each_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with DownloadProgress() as progress:
        for name in ("a", "b"):
            for done in range(5):
                progress.update(name, done * MB, 4 * MB)
    assert capsys.readouterr().err == "fetching a, 4 MB\nfetching b, 4 MB\n"
