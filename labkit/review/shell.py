"""What a shell command line does: fetch, install, delete, run what it fetched (lesson 10). Read, never run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from labkit.review.pins import requirement
from labkit.review.view import Hit

HARMLESS = frozenset(
    "ls pwd echo cat head tail df du free which whoami nvidia-smi lscpu lsb_release uname date nproc mkdir wc grep "
    "file stat find "
    "tree cd true test printf sort less more env sleep htop top ps tar unzip gunzip zip diff sha256sum md5sum "
    "export".split()
)
FETCHERS = frozenset("wget curl aria2c gdown kaggle youtube-dl yt-dlp gsutil scp rsync axel huggingface-cli hf".split())
PREFIXES = frozenset("sudo time nohup nice env exec command xargs".split())
INTERPRETERS = frozenset("sh bash zsh python python3 perl".split())
VALUED = frozenset(
    "-i --index-url --extra-index-url -f --find-links -r --requirement -c --constraint -t --target -e --editable "
    "-n --name --channel --progress-bar --root --prefix --python --trusted-host".split()
)


def read_command(text: str) -> list[Hit]:
    """Findings for a command line, each with its rule; none for commands that only look or make folders."""
    hits: list[Hit] = []
    words = split(text)
    commands = list(_commands(words))
    for number, (command, before) in enumerate(commands):
        if before == "|" and command[0] in INTERPRETERS and number and commands[number - 1][0][0] in FETCHERS:
            hits.append(Hit(f"`{_short(text)}` runs what it has just fetched", "high", rule="remote-code"))
        hits += read_words(command)
    return list(dict.fromkeys(hits))


def split(text: str) -> list[str]:
    """Words and operators of a command line; odd quoting falls back to white space."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:
        return text.split()


def _commands(words: list[str]) -> Iterator[tuple[list[str], str]]:
    command: list[str] = []
    before = ""
    for word in [*words, ";"]:
        if re.fullmatch(r"[;|&]+", word):
            command = _bare(command)
            if command:
                yield command, before
            command, before = [], word
        else:
            command.append(word)


def _bare(command: list[str]) -> list[str]:
    while command and (command[0] in PREFIXES or re.match(r"^\w+=", command[0])):
        command = command[1:]
    return [command[0].rsplit("/", 1)[-1], *command[1:]] if command else []


def read_words(words: list[str]) -> list[Hit]:
    """Findings for one command given as its words."""
    words = _bare(words)
    while (
        len(words) > 2 and re.fullmatch(r"python[\d.]*|uv|\{sys.executable\}", words[0]) and words[1] in ("-m", "pip")
    ):
        words = words[2:] if words[1] == "-m" else words[1:]
    if not words:
        return []
    name, rest = words[0], words[1:]
    flags = "".join(w[1:] for w in rest if w.startswith("-") and not w.startswith("--"))
    shown = f"`{_short(' '.join(words))}`"
    if re.fullmatch(r"pip[\d.]*|conda|mamba", name):
        return _install(name, rest, shown)
    if name == "git" and rest[:1] in (["clone"], ["pull"]):
        return [Hit(f"{shown} takes whatever that repository holds today", rule="unpinned-download", remedy=CLONE)]
    if name == "git" and rest[:1] == ["push"]:
        return [Hit(f"{shown} sends files to another machine", rule="upload")]
    if name in ("wandb", "tensorboard") and rest[:1] in (["login"], ["sync"], ["online"], ["dev"]):
        return [Hit(f"{shown} reports to an outside service", rule="tracker")]
    if name in FETCHERS:
        return _fetch(name, rest, shown)
    if name in ("rm", "rmdir", "shred"):
        recursive = "r" in flags.lower() or "--recursive" in rest
        return [Hit(f"{shown} deletes files", "high" if recursive else "medium", rule="delete")]
    if name == "git" or name in HARMLESS:
        return []
    return [Hit(f"{shown} starts a program that was not reviewed", "low", "medium", rule="shell")]


CLONE = "Check out a commit by its full number after cloning (git checkout <40 digits>), or keep a copy you have read."


def _fetch(name: str, rest: list[str], shown: str) -> list[Hit]:
    sends = {"upload", "-T", "--upload-file", "-F", "-d", "--data", "--data-binary", "--post-file", "create", "version"}
    if sends & set(rest) or (
        name in ("rsync", "scp", "gsutil") and rest and re.match(r"^(\w+://|[\w.@-]+:)", rest[-1])
    ):
        return [Hit(f"{shown} sends data to another machine", rule="upload")]
    hits = [Hit(f"{shown} fetches files from the network", rule="download")]
    if {"--no-check-certificate", "-k", "--insecure"} & set(rest):
        hits.append(Hit(f"{shown} does not check who answers", rule="unverified"))
    return hits


def _install(name: str, rest: list[str], shown: str) -> list[Hit]:
    if not rest or rest[0] not in ("install", "add"):
        return []
    wanted: list[str] = []
    skip = False
    for word in rest[1:]:
        if skip or word.startswith("-"):
            skip = not skip and word in VALUED
        else:
            wanted.append(word.replace("=", "==", 1) if name in ("conda", "mamba") and "==" not in word else word)
    found = [(word, requirement(word)) for word in wanted]
    loose = [word for word, r in found if r is not None and not r.bounded]
    if any(r is not None and r.url.startswith("git+") and not r.bounded for _, r in found):
        return [Hit(f"{shown} installs and so runs whatever a repository holds today", "high", rule="install")]
    if loose:
        return [Hit(f"{shown} installs whatever version is newest today: {', '.join(loose)}", rule="install")]
    return []


def _short(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"(://)[^/\s@]+@", r"\1***@", text)  # a password in an address is not repeated
    return text if len(text) <= 60 else text[:57] + "..."
