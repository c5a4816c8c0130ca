"""Files: a picture has its final size at once; other files show name and size."""

import pytest
from playwright.async_api import Page, expect

from .sample_rows import make_picture_row, make_row, make_user_row

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELD = """async (one) => {
  await rows.picture("pic", 640, 420);
  const ready = rows.context.session.file;
  rows.context.session.file = (...given) =>
    new Promise((done) => { globalThis.come = () => done(ready(...given)); });
  [globalThis.shown] = rows.show(one);
}"""


@pytest.fixture
def is_loaded_anew() -> bool:
    return True


@pytest.mark.req("rows.picture")
async def test_a_picture_has_its_size_and_colours_before_it_is_loaded(page: Page) -> None:
    await page.evaluate(HELD, make_picture_row("p"))
    place = page.get_by_role("button", name="Open beach.png")
    before = await place.bounding_box()
    assert before is not None
    assert abs(before["width"] / before["height"] - 640 / 420) < 0.02
    await expect(page.locator("canvas.picture-placeholder")).to_be_visible()
    assert await page.get_by_role("img").count() == 0
    await page.evaluate("globalThis.come()")
    await expect(page.locator("img.picture-image.is-there")).to_have_attribute("alt", "beach.png")
    assert await place.bounding_box() == before
    await place.press("Enter")
    assert await page.evaluate("rows.opened") == ["p"]


@pytest.mark.req("rows.picture")
async def test_a_file_that_turns_out_to_be_a_picture_becomes_one(page: Page) -> None:
    """Like a file that was just dropped and is still being examined."""
    known = make_picture_row("p")
    await page.evaluate(
        """async (one) => {
          await rows.picture("pic", 640, 420);
          [globalThis.shown] = rows.show(one);
        }""",
        make_user_row("u", "Look", files=[{**known, "image": None}], state="sending"),
    )
    await expect(page.locator(".file-card")).to_be_visible()
    await page.evaluate(
        "(one) => rows.all.updateRow(globalThis.shown, one, rows.context)",
        {
            **make_user_row("u", "Look", files=[{**known, "revision": 2}], state="sending"),
            "revision": 2,
        },
    )
    await expect(page.locator("img.picture-image.is-there")).to_be_visible()


@pytest.mark.req("rows.picture")
@pytest.mark.parametrize(
    "image",
    [
        {"width": 0, "height": 10, "thumbhash": ""},
        {"width": 1e9, "height": 1, "thumbhash": "x"},
        {"width": "5", "height": 5, "thumbhash": None},
        {"width": 1, "height": 60_000, "thumbhash": "AAAA"},
    ],
)
async def test_an_impossible_picture_size_breaks_nothing(
    page: Page, image: dict[str, object]
) -> None:
    await page.evaluate("(one) => { rows.show(one); }", {**make_picture_row("p"), "image": image})
    box = await page.locator(".file").bounding_box()
    assert box is not None
    assert box["height"] < 500


@pytest.mark.req("rows.picture")
async def test_a_picture_that_is_gone_says_so_in_its_place(page: Page) -> None:
    await page.evaluate("(one) => { rows.show(one); }", {**make_picture_row("p"), "ref": "gone"})
    await expect(page.get_by_text("beach.png could not be loaded.")).to_be_visible()


@pytest.mark.req("rows.file")
async def test_a_file_shows_its_type_and_is_saved_as_bytes_only(page: Page) -> None:
    """A foreign page that is saved must not become a page of ours."""
    row = make_row(
        "file",
        "f",
        role="agent",
        ref="html",
        name="a/b.html",
        size=14_000,
        mimeType="text/html",
        image=None,
    )
    await page.evaluate(
        """(made) => {
          const page = new Blob(["<script>window.pwned=1</script>"], { type: "text/html" });
          rows.files.set("html", page);
          const make = URL.createObjectURL;
          globalThis.types = [];
          URL.createObjectURL = (blob) => {
            globalThis.types.push(blob.type);
            return make.call(URL, blob);
          };
          rows.show(made);
        }""",
        row,
    )
    await expect(page.locator(".file-kind")).to_have_text("Web page, 14 KB")
    async with page.expect_download() as saved:
        await page.get_by_role("button", name="Download a/b.html").press("Enter")
    assert "b.html" in (await saved.value).suggested_filename
    assert await page.evaluate("globalThis.types") == ["application/octet-stream"]
    assert await page.evaluate("rows.announced") == ["a/b.html is downloaded."]


@pytest.mark.req("rows.file")
async def test_a_file_that_fails_to_load_says_why_and_can_be_retried(page: Page) -> None:
    row = make_row(
        "file",
        "f",
        role="agent",
        ref="gone",
        name="x.zip",
        size=9,
        mimeType="application/zip",
        image=None,
    )
    await page.evaluate("(one) => { rows.show(one); }", row)
    button = page.get_by_role("button", name="Download x.zip")
    await button.click()
    await expect(page.get_by_role("alert")).to_have_text("The file is not there any more.")
    assert await button.get_attribute("aria-disabled") is None
    await expect(page.locator(".file-kind")).to_have_text("Archive, 9 bytes")
