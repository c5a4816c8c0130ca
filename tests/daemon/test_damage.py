"""A daemon with damaged files: it shows damaged records as such, and everything else works."""

import json
from pathlib import Path

import pytest

from crabtalk.memory import AddEntry, Memory
from crabtalk.runtime import ToolDispatch
from crabtalk.storage import verify_log
from tests.daemon.in_process_daemon import list_request_messages, run_daemon
from tests.daemon.test_cli import run_crabtalkd
from tests.model_server import model_server


async def look_around(call: ToolDispatch) -> str:
    return "waves"


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old)
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


@pytest.mark.req("checksums.log.shown")
async def test_a_damaged_message_is_left_out_of_the_history_and_shown_as_damaged(
    tmp_path: Path,
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            for text in ("one", "two", "three"):
                await client.send("crab", text)
            (log,) = daemon.log_paths
        replace_bytes(log, b'"text":"heard: two"', b'"text":"heard: tow"')
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            page = await client.list_messages("crab")
            assert [message.id for message in page.messages] == [0, 1, 2, 3, 4, 5]
            assert "is damaged on disk" in page.messages[3].content
            assert page.messages[3].role == "assistant"
            handle = (await client.list_conversations()).conversations[0].file_path
            history = await client.get_conversation_history(handle)
            assert [m.content for m in history.messages if m.id != 3] == [
                *("one", "heard: one", "two", "three", "heard: three")
            ]
            await client.send("crab", "four")
            texts = [text for _, text in list_request_messages(model.requests[-1])]
            assert texts[-5:] == ["heard: one", "two", "three", "heard: three", "four"]
            page = await client.list_messages("crab", offset=6)
            assert [message.content for message in page.messages] == ["four", "heard: four"]
            assert not (await client.search_sessions("tow")).hits
    (damage,) = verify_log(log)
    assert damage.message_id == 3


@pytest.mark.req("checksums.log.shown")
@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"name":"look"', b'"name":"l00k"'), (b'"text":"waves"', b'"text":"weves"')],
    ids=["call", "result"],
)
async def test_a_damaged_call_or_result_leaves_a_history_that_models_accept(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model, tools={"look": look_around}) as daemon:
            async with daemon.client() as client:
                await client.send("crab", "!tool look {}\n!then\n!say done")
            (log,) = daemon.log_paths
        data = log.read_bytes().split(b"\n")
        for number, line in enumerate(data):
            if line.startswith(b'{"kind":"message"') and old in line:
                data[number] = line.replace(old, new)
                break
        log.write_bytes(b"\n".join(data))
        async with (
            run_daemon(tmp_path, model, tools={"look": look_around}) as daemon,
            daemon.client() as client,
        ):
            await client.send("crab", "next")
        messages = model.requests[-1]["messages"]
        calls = [call["id"] for m in messages for call in m.get("tool_calls") or ()]
        results = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        assert calls == results
        assert new.decode()[-6:] not in json.dumps(messages)


@pytest.mark.req("checksums.memory.named")
async def test_a_damaged_memory_is_a_problem_of_the_daemon_until_its_entry_is_written_again(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        path = daemon.home / "memory" / "crab.crmem"
        with Memory.open(path) as memory:
            memory.apply(AddEntry("beach", "north"))
            memory.apply(AddEntry("moon", "full"))
        replace_bytes(path, b"north", b"forth")
        assert len((await client.search_memory("crab", "beach")).hits) == 1
        (problem,) = (await client.get_stats()).problems
        assert problem.startswith("the memory crab: crab.crmem was changed outside crabtalk")
        assert "entry 'beach' is not what was written" in problem
        assert "'moon'" not in problem
        entries = (await client.list_memory("crab")).entries
        await client.replace_memory("crab", entries)
        assert list((await client.get_stats()).problems) == []


@pytest.mark.req("checksums.verify_command")
async def test_crabtalkd_verify_names_damaged_records_while_a_daemon_runs(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.send("crab", "one")
        (log,) = daemon.log_paths
        path = daemon.home / "memory" / "crab.crmem"
        with Memory.open(path) as memory:
            memory.apply(AddEntry("beach", "north"))
        home_option = ("--home", str(daemon.home))
        fine = run_crabtalkd("verify", *home_option)
        assert (fine.returncode, fine.stdout) == (0, f"no damage in 2 files of {daemon.home}\n")
        replace_bytes(log, b'"text":"heard: one"', b'"text":"heard: 0ne"')
        replace_bytes(path, b"north", b"forth")
        result = run_crabtalkd("verify", "--json", *home_option)
        report = json.loads(result.stdout)
        assert (result.returncode, report["checked"], report["unchecked"]) == (1, 2, 0)
        note, record = report["damage"]
        assert (note["file"], note["entry"]) == (str(path), "beach")
        assert f"remove {path}.sums" in note["next_step"]
        assert (record["file"], record["message_id"]) == (str(log), 1)
        assert f"line {record['line']} (message 1 of " in record["problem"]
        result = run_crabtalkd("verify", *home_option)
        assert f"{log}: line {record['line']} " in result.stdout
        hurried = json.loads(
            run_crabtalkd("verify", "--json", "--seconds", "0", *home_option).stdout
        )
        assert hurried["checked"] + hurried["unchecked"] == 2
        assert hurried["unchecked"] >= 1
