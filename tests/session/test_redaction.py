"""Redaction: private text leaves no trace in a session's events; what tables need stays."""

import msgspec
import pytest

from cs336_tui.config.spec import AXES
from cs336_tui.events import events as ev
from cs336_tui.session.redaction import redacted
from tests.samples import ENVIRONMENT, HEADER, a_spec, cell_start, jobs_session, lanes_session, mixed_session

PRIVATE = {"USER": "ada-lovelace", "HF_TOKEN": "a-secret-of-no-known-form", "WANDB_API_KEY": "0123456789abcdef"}


@pytest.fixture(autouse=True)
def _private(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PRIVATE.items():
        monkeypatch.setenv(name, value)


def said(text: str) -> str:
    (event,) = redacted([ev.Notice(at=0.0, text=text)])
    assert isinstance(event, ev.Notice)
    return event.text


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("File /home/grace/models/lm.py, line 3", "File PATH/lm.py, line 3"),
        ("grace's /home/grace", "user's PATH/user"),
        ("PYTHONPATH=/opt/a:/opt/b c", "PYTHONPATH=PATH/a:PATH/b c"),
        ("file:///scratch/me/x.json", "PATH/x.json"),
        ("-I/usr/include/cuda -L /opt/lib", "-I/usr/include/cuda -L PATH/lib"),
        ("~/code/mine.py", "PATH/mine.py"),
        ("ada-lovelace ran it", "user ran it"),
        ("login a-secret-of-no-known-form failed", "login REDACTED failed"),
        ("Bearer abcdefghij and hf_abcdefghijkl", "Bearer REDACTED and REDACTED"),
        ("MY_TOKEN=xyz --batch 4", "MY_TOKEN=REDACTED --batch 4"),
        ("https://me:word@example.org/a/b", "https://REDACTED@example.org/a/b"),
        ("bob@gpu7.lab.edu, bob@n1; --mail-user=bob@x.edu", "user@host, user@host; --mail-user=user@host"),
        ("from git@github.com:bob/repo at 10.3.4.5:29500.", "from user@host at host:29500."),
        ("~bob/code/x.py ../bobproj/secretdir/mine.py ./a/b.py", "PATH/x.py PATH/mine.py PATH/b.py"),
        ("--password hunter22 api_key=abcdefgh", "--password REDACTED api_key=REDACTED"),
        (
            "--model-path /a/bob --model-path='b c/bob' --model-path /a/bob",
            "--model-path PATH --model-path=PATH-2 --model-path PATH",
        ),
        ("GPU-12345678-aaaa-bbbb-cccc-0123456789ab", "GPU-uuid-1"),
        ("cudnn==9.1.0.70 mine:f:25MB ... x @ y ~3/4", "cudnn==9.1.0.70 mine:f:25MB ... x @ y ~3/4"),
        ("1,024 tokens/s, 3 of 4 and/or more; blocks.0/attn", "1,024 tokens/s, 3 of 4 and/or more; blocks.0/attn"),
        ("https://github.com/pytorch/pytorch/issues/1", "https://github.com/pytorch/pytorch/issues/1"),
        ("key=value, tokens: 512", "key=value, tokens: 512"),
    ],
)
def test_a_text_without_what_is_private(text: str, public: str) -> None:
    assert said(text) == public


def test_the_home_and_the_current_folder_go_as_they_are_named(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("HOME", "/srv/people of here/ada")
    assert said(f"in {tmp_path}/sub/train.py") == "in PATH/train.py"
    assert said("--model '/srv/people of here/ada/code'") == "--model 'PATH/code'"


@pytest.mark.parametrize("user", ["small", "forward", "cuda", "me", "step"])
def test_a_user_with_a_name_of_the_vocabulary_changes_no_choice(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", user)
    events = mixed_session()
    found = redacted(events)
    specs = [each.specs for each in (*events, *found) if isinstance(each, ev.CellsQueued)]
    assert specs[: len(specs) // 2] == specs[len(specs) // 2 :]
    assert [type(each) for each in found] == [type(each) for each in events]


@pytest.mark.parametrize("user", ["cs336", "tui", "model", "d", "mall", "small", "bench"])
def test_a_user_with_a_name_of_a_command_changes_no_command(user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", user)
    command = "cs336-tui bench --size small --d-model 16 --warmup 2"
    assert said(f"{command} # {user}-laptop") in (f"{command} # user-laptop", f"{command} # {user}-laptop")
    assert said("mallard's") == ("userard's" if user == "mall" else "mallard's")


def test_code_of_ones_own_keeps_its_name_and_loses_its_folder() -> None:
    spec = a_spec(model="lm.model:LM", model_path=("/home/grace/repository",))
    (event,) = redacted([ev.CellsQueued(at=0.0, first=0, specs=(spec,), command="cs336-tui bench")])
    assert isinstance(event, ev.CellsQueued)
    assert event.specs == (msgspec.structs.replace(spec, model_path=("PATH",)),)


def test_machines_are_told_apart_everywhere() -> None:
    others = [msgspec.structs.replace(ENVIRONMENT, host=host) for host in ("alpha.example.org", "beta.example.org")]
    log = [HEADER, *(ev.EnvironmentRead(at=0.0, environment=each) for each in others)]
    found = redacted([*log, ev.Notice(at=0.0, text="beta waits for alpha")])
    hosts = [each.environment.host for each in found if isinstance(each, ev.EnvironmentRead)]
    assert len({*hosts}) == 2
    assert all(host.startswith("host") for host in hosts)
    text = found[-1]
    assert isinstance(text, ev.Notice)
    assert not {"alpha", "beta"} & {*text.text.split()}


@pytest.mark.parametrize("events", [mixed_session(), lanes_session(), jobs_session(), cell_start(0)], ids=range(4))
def test_numbers_stay(events: list[ev.Event]) -> None:
    found = redacted(events)
    assert [each for each in found if isinstance(each, ev.StepsTimed)] == [
        each for each in events if isinstance(each, ev.StepsTimed)
    ]
    assert redacted(found) == found
    assert AXES
