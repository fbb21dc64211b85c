"""`tenora upload` at a terminal: a progress bar, then the validation report. ``tenora.upload.client`` does the work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from tenora.upload.client import Uploader, UploadProgress, read_folder


def run_upload(
    folder: Path, *, adapter: str, base_model: str | None, url: str, key: str, timeout_s: float, console: Console
) -> bool:
    """Upload, print the report, and return whether the revision is ready. Raises ``UploadFailed``."""
    found = read_folder(folder)
    if found.left_out:
        console.print(f"not uploaded (not part of an adapter): {', '.join(found.left_out)}", markup=False)
    columns = (TextColumn("uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("upload", total=None, visible=False)
        uploader = Uploader(
            url,
            key,
            UploadProgress(
                show_line=lambda text: progress.console.print(text, markup=False),
                sending=lambda size: progress.update(bar, total=size, completed=0, visible=size > 0),
                sent=lambda size: progress.advance(bar, size),
            ),
        )
        try:
            uploader.ensure_adapter(adapter, base_model or found.base_model)
            revision = uploader.upload(found, adapter, timeout_s=timeout_s)
        finally:
            uploader.close()
    _show(revision, adapter, console)
    return bool(revision["status"] == "ready")


def _show(revision: dict[str, Any], adapter: str, console: Console) -> None:
    report = revision["report"] or {"problems": [], "notes": []}
    if revision["status"] == "ready":
        text = f'{revision["id"]} is ready: call it as model="{adapter}@{revision["id"]}"'
        console.print(text, markup=False, soft_wrap=True)
    else:
        console.print(f"{revision['id']} is rejected:", markup=False)
        keys = ("code", "file", "where", "message")
        console.print(_table(keys, [[problem[key] for key in keys] for problem in report["problems"]]))
    for note in report["notes"]:
        console.print(f"note: {note}", markup=False)
    canary = report.get("canary") or {}
    if "prompt" in canary:
        answers = [["base model", canary["base_answer"]], ["this adapter", canary["adapter_answer"]]]
        console.print(_table(("asked", canary["prompt"]), answers))


def _table(head: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Table:
    """A table of literal texts: tenants' text is never interpreted as markup."""
    table = Table(*map(escape, head), box=None)
    for row in rows:
        table.add_row(*(Text(cell or "") for cell in row))
    return table
