"""Read one streamed answer with one client, and print the CPU time of each chunk.

Run as `python -m bench.stream_readers CLIENT URL CHUNKS`, in an environment that has the client.
Each reader does what a program would do: iterate over the answer and count its text.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

MESSAGES = [{"role": "user", "content": "hi"}]


async def read_raw(url: str) -> int:
    """Read with an asyncio stream: hardly any HTTP, no JSON."""
    host, _, port = url.removeprefix("http://").partition("/")[0].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    body = bytearray()
    while data := await reader.read(65536):
        body += data
        if body.endswith(b"\r\n0\r\n\r\n"):
            break
    writer.close()
    return body.count(b'"content"')


async def read_aiohttp(url: str) -> int:
    """Read with the bare HTTP client: body pieces as they come, no JSON."""
    import aiohttp

    body = bytearray()
    async with aiohttp.ClientSession() as session, session.post(url) as response:
        async for data in response.content.iter_any():
            body += data
    return body.count(b'"content"')


async def read_ours(url: str) -> int:
    from crabtalk.model import HttpClient, HttpProvider, Message, Request
    from crabtalk.model.openai import OpenAiDialect

    http = HttpClient()
    provider = HttpProvider(OpenAiDialect("bench", base=f"{url}/v1"), http)
    request = Request(model="m", messages=(Message(role="user", text="hi"),))
    seen = 0
    async for chunk in provider.stream(request):
        if chunk.text:
            seen += 1
    await http.close()
    return seen


async def read_openai(url: str) -> int:
    from openai import AsyncOpenAI

    seen = 0
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                seen += 1
    return seen


async def read_litellm(url: str) -> int:
    import litellm  # type: ignore[import-not-found]

    seen = 0
    stream = await litellm.acompletion(
        model="openai/m", api_base=f"{url}/v1", api_key="k", messages=MESSAGES, stream=True
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            seen += 1
    return seen


READERS: dict[str, Callable[[str], Awaitable[int]]] = {
    "raw asyncio": read_raw,
    "aiohttp": read_aiohttp,
    "ours": read_ours,
    "openai SDK": read_openai,
    "litellm": read_litellm,
}


async def measure_reader(name: str, url: str, count: int) -> None:
    read = READERS[name]
    await read(url)  # warm up imports, connections and caches
    start = time.process_time()
    seen = await read(url)
    spent = time.process_time() - start
    assert seen == count, f"{name} saw {seen} of {count} chunks"
    print(f"{spent / count * 1e6:.1f}")


if __name__ == "__main__":
    uvloop.run(measure_reader(sys.argv[1], sys.argv[2], int(sys.argv[3])))
