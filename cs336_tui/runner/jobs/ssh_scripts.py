"""Scripts of ``sh`` that run on a host of ``--launcher ssh``. They need POSIX, and Linux' ``/proc`` to find what a
killed job has left behind. A job is named by its path below `ROOT`, ``SESSION/JOB``; its files have suffixes."""

from __future__ import annotations

import secrets
import shlex

ROOT = "${XDG_DATA_HOME:-$HOME/.local/share}/cs336-tui/jobs"
"""The folder of jobs on a host; each session has a folder of its own in it."""
ROOT_IN_WORDS = "~/.local/share/cs336-tui/jobs"

MOST_BYTES = 1 << 20
"""Maximum number of bytes of a file in one answer."""

_RUNS = """
runs() { # PID job: it is a process of the job's; its PID may be another's by now, and a zombie has no command line
  kill -0 "$1" || return 1
  if [ -d /proc/self ]; then grep -qsF "$2.json" "/proc/$1/cmdline"
  else ps -ww -p "$1" -o args= | grep -qF "$2.json"; fi
} 2>/dev/null
"""

_SUPERVISOR = f"""{_RUNS}
job=${{1%.json}}
cd "$2" 2>/dev/null || cd
waits() {{ # job: its shell runs
  read -r shell rest <"$1.pid" && runs "$shell" "$1"
}} 2>/dev/null
if [ -n "$4" ]; then
  : >"$job.waits"
  echo "$$" >"$job.draft" && mv "$job.draft" "$job.pid"
  while waits "${{job%/*}}/$4"; do sleep 0.5; done
  rm -f "$job.waits"
fi
export CS336_TUI_JOB="$job.json"
eval "exec env $3 run-job \\"\\$job.json\\" --trust" >"$job.out" 2>&1 </dev/null &
echo "$$ $!" >"$job.draft" && mv "$job.draft" "$job.pid"
wait $!
code=$?
[ ! -f "$job.stop" ] || code=130
left=$(grep -lsF "CS336_TUI_JOB=$job.json" /proc/[0-9]*/environ | sed 's,/proc/,,; s,/.*,,')
[ -z "$left" ] || kill -KILL $left 2>/dev/null
echo "$code" >"$job.draft" && mv "$job.draft" "$job.end"
kill -KILL 0
"""
"""Waits for another job of its session to end, if it is to, runs a job to its end, ends what it has left behind, notes
its exit code, and ends itself with its process group."""

FUNCTIONS = f"""{_RUNS}
root="{ROOT}"
supervisor={shlex.quote(_SUPERVISOR)}
boot() {{ cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.boottime; }}
lives() {{ # job: its shell or run-job runs; a PID may be another's by now
  shell='' run=''
  read -r shell run <"$1.pid"
  for pid in $shell $run; do
    runs "$pid" "$1" && return 0
  done
  return 1
}}
look_up() {{ # job: sets `now` to a word for its state and its exit code
  code=0
  if lives "$1"; then if [ -f "$1.waits" ]; then now='waits 0'; else now='runs 0'; fi
  elif [ -f "$1.end" ]; then read -r code <"$1.end"; now="ended $code"
  elif [ -f "$1.stop" ]; then now='ended 130'
  elif [ "$(boot)" != "$(cat "$1.boot")" ]; then now='rebooted 0'
  else now='gone 0'; fi
}}
sweep() {{ # job: end what is left of it
  left=$(grep -lsF "CS336_TUI_JOB=$1.json" /proc/[0-9]*/environ | sed 's,/proc/,,; s,/.*,,')
  [ -z "$left" ] || kill -KILL $left 2>/dev/null
}}
detach() {{
  command -v setsid >/dev/null && exec setsid "$@"
  exec perl -MPOSIX -e 'POSIX::setsid(); exec @ARGV' "$@"
}}
launch() {{ # job folder command other: start it, once the other job has ended, to go on without this connection
  boot >"$1.boot"
  rm -f "$1.pid" "$1.end" "$1.stop"
  detach sh -c "$supervisor" sh "$1.json" "$2" "$3" "$4" >/dev/null 2>&1 &
  tries=0
  until [ -s "$1.pid" ] || [ $tries -ge 100 ]; do sleep 0.05; tries=$((tries + 1)); done
}}
stop() {{ # job: politely, then surely
  set -- "$1" $(cat "$1.pid" 2>/dev/null)
  if lives "$1"; then
    : >"$1.stop"
    if [ -f "$1.waits" ]; then kill -KILL "$2"; else kill -TERM "$3"; fi
  fi
  tries=0
  while lives "$1" && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
  if lives "$1"; then kill -KILL "$3"; sleep 0.5; fi
  if lives "$1"; then kill -KILL "$2"; fi
  sweep "$1"
  return 0
}} 2>/dev/null
tidy() {{ # session known...: end and remove the session's jobs but for these
  session=$1
  shift
  for file in "$session"/*.json; do
    name=${{file##*/}}
    case " $* " in *" ${{name%.json}} "*) continue ;; esac
    [ -f "$file" ] && stop "${{file%.json}}" && rm -rf "${{file%.json}}".*
  done
}}
piece() {{ # file offset bytes
  tail -c "+$(($2 + 1))" "$1" | head -c "$3"
}}
look() {{ # job offset: its state, the size of its log, and what that has from the offset on, after its number of bytes
  look_up "$1"
  size=$({{ wc -c <"$1.jsonl"; }} 2>/dev/null)
  more=$((size - $2))
  [ $more -le {MOST_BYTES} ] || more={MOST_BYTES}
  [ $more -ge 0 ] || more=0
  echo $now $((size)) $more
  [ $more -eq 0 ] || piece "$1.jsonl" "$2" $more
}}
"""
"""Functions that the other scripts call."""


def there(path: str) -> str:
    """A path below `ROOT` as one word of the shell's."""
    return f'"$root"/{shlex.quote(path)}'


def script_to_start(path: str, request: str, where: str, command: str, after: str) -> str:
    """Write the request of a job and start it; writes its processes' PIDs. `where` is the folder that it runs in;
    `after` is the job of its session that it waits for, if not empty: two at once would share devices."""
    end = f"end-{secrets.token_hex(16)}"
    lines = (
        "umask 077",
        f'mkdir -p "$(dirname {there(path)})"',
        f"cat >{there(f'{path}.json')} <<'{end}'",
        request,
        end,
        f"launch {there(path)} {shlex.quote(where)} {shlex.quote(command)} {shlex.quote(after)}",
        f"cat {there(f'{path}.pid')}",
    )
    return "\n".join(lines)


def script_to_find(command: str | None, here: str) -> str:
    """Write the command with which cs336-tui is run and its version, a line each. `here` is where it is on this
    machine."""
    if command is not None:
        choose = f"found={shlex.quote(command)}"
    else:
        places = f'cs336-tui "$HOME/.local/bin/cs336-tui" {shlex.quote(here)}'
        choose = f'found=; for each in {places}; do command -v "$each" >/dev/null && found=$each && break; done'
    run = 'eval "env $found --version" 2>&1 | tail -n 1'
    return f'{choose}\necho "$found"\nif [ -n "$found" ]; then {run}; else echo; fi'


def script_to_remove(path: str) -> str:
    """Remove what a job has left there."""
    return f'rm -rf {there(path)}.*; rmdir "$(dirname {there(path)})"'
