"""Foreign text: known attacks on markdown readers and terminals, and input that makes careless
parsers slow."""

from collections.abc import Iterator

RUN = "window.pwned=1"

# Each is put into every place where foreign text is shown.
SCRIPTS = [
    f"<script>{RUN}</script>",
    f"<ScRiPt >{RUN}</sCrIpT>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<img src=x onerror={RUN}>",
    f"<img/src='x'/onerror='{RUN}'>",
    f"<img src=x\nonerror\n=\n{RUN}>",
    f'<IMG """><SCRIPT>{RUN}</SCRIPT>">',
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{RUN}'><text y=20>x</text></a></svg>",
    f"<svg><foreignObject><iframe srcdoc='<script>parent.{RUN}</script>'></foreignObject></svg>",
    f"<math><mi xlink:href='javascript:{RUN}'>x</mi></math>",
    f"<iframe src='javascript:parent.{RUN}'></iframe>",
    f"<object data='javascript:{RUN}'></object><embed src='javascript:{RUN}'>",
    f"<body onload={RUN}><input autofocus onfocus={RUN}>",
    f"<details open ontoggle={RUN}><summary>x</summary></details>",
    f"<video><source onerror={RUN}></video><audio src=x onerror={RUN}>",
    f"<a href='javascript:{RUN}'>x</a><form action='javascript:{RUN}'><button>x</button></form>",
    "<base href='//192.0.2.1/'><link rel=stylesheet href='//192.0.2.1/x.css'>",
    "<meta http-equiv=refresh content='0;url=//192.0.2.1/'>",
    "<style>@import '//192.0.2.1/x.css'; body{background:url(//192.0.2.1/)}</style>",
    f"<template><img src=x onerror={RUN}></template><noscript><img src=x onerror={RUN}></noscript>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={RUN}>",
    f"<!--><img src=x onerror={RUN}>--><![CDATA[<img src=x onerror={RUN}>]]>",
    f"<x contenteditable onblur={RUN}>x</x><div style='background:url(javascript:{RUN})'>x</div>",
    f"&lt;script&gt;{RUN}&lt;/script&gt; &#60;img src=x onerror={RUN}&#62;",
    f"&#x3c;svg/onload={RUN}&#x3e; &amp;lt;script&amp;gt;{RUN}",
    f"\\<script\\>{RUN}\\</script\\>",
    f"＜script＞{RUN}＜/script＞ \u2039script\u203a \u00bcscript\u00be",
    f"{{{{constructor.constructor('{RUN}')()}}}} ${{{RUN}}} <%= {RUN} %>",
    f"javascript:{RUN} data:text/html,<script>{RUN}</script> vbscript:x",
    "\x00<\x00script>\x00 \x0b\x0c\x1f\x7f\x85\u2028\u2029\ufeff\ufffe",
]

ADDRESSES = [
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}",
    f"javascript&colon;{RUN}",
    f"javascript&#58;{RUN}",
    f"&#x6A;&#x61;&#x76;&#x61;&#x73;&#x63;&#x72;&#x69;&#x70;&#x74;&#x3A;{RUN}",
    f"java\\script:{RUN}",
    f"java&Tab;script:{RUN}",
    f"java&NewLine;script:{RUN}",
    f"java&#10;script:{RUN}",
    f"&#1;javascript:{RUN}",
    f"&#32;javascript:{RUN}",
    f"\x01javascript:{RUN}",
    f"%6A%61vascript:{RUN}",
    f"javascript://192.0.2.1/%0a{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    "data:text/html;base64,PHNjcmlwdD5wYXJlbnQucHduZWQ9MTwvc2NyaXB0Pg==",
    f"data:image/svg+xml,<svg onload={RUN}>",
    f"vbscript:{RUN}",
    "file:///etc/passwd",
    "blob:https://192.0.2.1/x",
    "filesystem:https://192.0.2.1/x",
    "view-source:javascript:1",
    "about:blank",
    "intent://192.0.2.1#Intent;scheme=http;end",
    "//192.0.2.1/x",
    "\\\\192.0.2.1\\x",
    "/v1/devices",
    "ws://192.0.2.1",
    "feed:javascript:1",
    "jar:javascript:1!/",
    f"\u202ejavascript:{RUN}",
    f"ｊavascript:{RUN}",
    f"javascript\u200b:{RUN}",
]

# An address in each of the places where markdown has one.
PLACES = [
    "[x]({})", "[x](<{}>)", "![x]({})", "[x]({} 'y')", "[![x]({})](https://a.example/)",
    "[![y](https://a.example/)]({})", "[x]\n\n[x]: {}", "[x]\n\n[x]: <{}>", "<{}>", "{}",
    "[x][y]\n\n[y]: {} \"z\"", "| a |\n|---|\n| [x]({}) |", "- [ ] [x]({})", "> # [x]({})",
    "**[x]({})**", "[`x`]({})", "[x]( {} )", "[x](\n{}\n)", "http://a.example/{}", "www.{}",
]  # fmt: skip

TITLES = [
    f"\" onmouseover=\"{RUN}", f"' onmouseover='{RUN}", f"><img src=x onerror={RUN}>", "\u202ex",
]  # fmt: skip

TERMINAL = [
    "\x1b]8;;javascript:window.pwned=1\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]0;title\x07\x1b[2J\x1b[H\x1b[31mred\x1b[0m",
    "\x1b[38;2;1;2;3mrgb\x1b[48;5;200mx\x1b[9999999999m\x1b[;;;;m\x1b[m",
    "\x1b[" + "1;" * 5000 + "m",
    "\x1b" * 1000,
    "\x1bP" + "x" * 10_000,
    "\x9b31mc1\x9bm \x90x\x9c",
    "a\rb\r\nc\r\r\n",
]

MARKS = [
    "*a ", "*a_ ", "**a*", "_a__", "~a~~", "[", "![", "]", "[a](", "[a](b", "[a](<b", '[a](b "',
    "[a](b 'x' ", "[a][", "[[a]](", "`", "``a`", "` `` ", "<", "<a:", "<a@b", "&", "&#", "&a;",
    "\\",     "!", "http://", "http://%*", "www.", "www.a*", "a@", "a@b.", "https://a.b/(", "> ",
    "- ", "1. ",
    "* * ", "# ", "|", "|a", "a|b\n", "|-|\n", "a|b\n-|-\n", "    a\n", "```\n", "\n", "a\n",
    "a  \n",     "[a]: b\n", "[a]: <b\n", "[a]: b 'c\n", "- a\n\n", "- a\n  ", "\t", "- \t", "=",
    "a\n=\n",
    "***", "_*", "a*", "[a]\n\n", "![a](b)", "[![a](b)](c)", "[x]: /a\n\n[x]\n\n", "<http://a>",
    "http://a.b/c_d*e ", "-\n", "+\n-\n*\n", ">- ", "* - + ", "(*", "*)", "[a\n", "\u202e", "é*",
    "𝒳*", "\u0301", "\x00", "\ud800", "👩‍👩‍👧",
]  # fmt: skip

CODE = [
    '"', "'", "/*", "//", '"\\', "'''", '"""', "${", "`${", "a(", "0x", "1e", "@", "#!", "<!--",
    "--", "$", 'r#"', "=/", "/a", "/[", "a:", "a=", "- a: ", "{{", "[[", '"a"   ', "          ",
    "        :", "<a b=", '<a b="', "&a", " a b c d", "aaaaaaaaaaaaaaa", "_", "1_", "....",
    "return /",     "=  ", "\n", "\t\n", "# a\n", "+a\n", "-- \n", "**a", "[a](b",
]  # fmt: skip


FRAMES = [
    "# {}", "> {}", "- {}", "`{}`", "```{}\n{}\n```", "| {} |\n|---|\n| {} |", "*{}*", "~~~\n{}",
    "[{}](https://a.example/)", "![{}](https://a.example/)",
]  # fmt: skip


def list_hostile_markdown() -> Iterator[str]:
    yield from SCRIPTS
    for script in SCRIPTS:
        yield from (frame.replace("{}", script) for frame in FRAMES)
    for place in PLACES:
        yield from (place.replace("{}", address) for address in ADDRESSES)
    for title in TITLES:
        yield f"[x](https://a.example/ '{title}') ![x](https://a.example/ ({title}))"
        yield f"[x]\n\n[x]: https://a.example/ '{title}'"
        yield f"[{title}](https://a.example/{title})"
