"""`tenora upload` at a terminal: progress, then the validation report. ``tenora.upload.client`` does the work."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.spinner import Spinner

from core.contracts.routes import PROD
from core.visible_text import visible
from tenora.client import Tenora
from tenora.command_line import show
from tenora.upload.client import Uploader, UploadProgress, read_folder


def run_upload(
    folder: Path,
    *,
    client: Tenora,
    adapter: str,
    base_model: str | None,
    promote: bool,
    timeout_s: float,
    console: Console,
) -> bool:
    """Upload, let the adapter's name serve the revision if ``promote``, print the report and what is served. Returns
    whether the revision is ready. Raises ``TenoraError``.
    """
    found = read_folder(folder)
    if found.left_out:
        _print(console, f"not uploaded (not part of an adapter): {', '.join(found.left_out)}")
    with _Display(console) as display:
        uploader = Uploader(client, display.progress())
        created = uploader.ensure_adapter(adapter, wanted=base_model, named=found.base_model)
        revision = uploader.upload(found, adapter, timeout_s=timeout_s, created=created)
        is_ready: bool = revision["status"] == "ready"
        if promote and is_ready and not uploader.promote(adapter, revision["id"]):
            _print(console, "some gateways have not confirmed the move yet; they follow within seconds")
        serves = uploader.serves(adapter)
        aliases = uploader.aliases(adapter)
    answer = {"adapter": adapter, "revision": revision, "serves": serves, "aliases": aliases}
    show(answer, lambda: _show(revision, adapter, serves, aliases, console))
    return is_ready


class _Display:
    """A bar while bytes are sent, then the stage of the validation. Without a terminal, one line a stage."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("upload", total=None, visible=False)
        self._live = Live(self._bar, console=console, transient=True)
        self._stage = ""

    def __enter__(self) -> "_Display":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def progress(self) -> UploadProgress:
        """Callbacks that show the progress here."""
        return UploadProgress(
            show_line=lambda text: _print(self._console, text),
            sending=lambda size: self._bar.update(self._task, total=size, completed=0, visible=size > 0),
            sent=lambda size: self._bar.advance(self._task, size),
            stage=self._show_stage,
        )

    def _show_stage(self, text: str) -> None:
        if text == self._stage:
            return
        self._stage = text
        if self._console.is_terminal:
            self._live.update(Spinner("dots", text))
        else:
            _print(self._console, text)


def _show(
    revision: dict[str, Any], adapter: str, serves: str | None, aliases: dict[str, str | None], console: Console
) -> None:
    report = revision["report"] or {"problems": [], "notes": []}
    if revision["status"] == "ready":
        _print(console, f'{revision["id"]} is ready: call it as model="{adapter}@{revision["id"]}"')
        if serves == revision["id"]:
            _print(console, f'model="{adapter}" serves it too')
        else:
            how = "repeat this command with --promote, which sends nothing again"
            _print(console, f'model="{adapter}" still serves {serves or "several revisions"}; to move it: {how}')
        for alias, target in aliases.items():
            if alias != PROD and target != revision["id"]:
                how = f"tenora adapters promote {adapter} {revision['id']} --alias {alias}"
                shown = target or "several revisions"
                _print(console, f'model="{adapter}:{alias}" still serves {shown}; to move it: {how}')
    else:
        _print(console, f"{revision['id']} is rejected:")
        for problem in report["problems"]:
            _print(console, f"\n{problem['message']} ({problem['code']})")
    for note in report["notes"]:
        _print(console, f"note: {note}")
    canary = report.get("canary") or {}
    if "prompt" in canary:
        _print(console, f"\nasked: {canary['prompt']}")
        _print(console, f"base model: {canary['base_answer']}")
        _print(console, f"this adapter: {canary['adapter_answer']}")


def _print(console: Console, text: str) -> None:
    """A paragraph, which a terminal may wrap but nothing truncates. Text of others is never markup or a command."""
    console.print(visible(text), markup=False, highlight=False, soft_wrap=True)
