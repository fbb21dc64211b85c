"""Callers of the demo of a fleet: they follow one stream after the other, and remember each that was not whole."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import openai

from tests.conftest import TLS

TOKENS = 100


@dataclass
class Callers:
    """``whole`` streams ended with their usage, ``broken`` ones with an error."""

    whole: int = 0
    broken: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def follow(self, url: str, key: str, model: str) -> None:
        with openai.OpenAI(
            base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=120,
            http_client=openai.DefaultHttpxClient(verify=TLS),
        ) as client:  # fmt: skip
            while not self._ended.is_set():
                try:
                    chunks = list(
                        client.completions.create(
                            model=model, prompt="The sea", max_tokens=TOKENS, stream=True,
                            stream_options={"include_usage": True},
                        )
                    )  # fmt: skip
                except openai.OpenAIError as error:
                    self.broken.append(str(error)[:200])
                else:
                    self.whole += chunks[-1].usage is not None


@contextlib.contextmanager
def calling(url: str, key: str, model: str, callers: int) -> Iterator[Callers]:
    """So many callers until the block ends; then their last streams end."""
    made = Callers()
    with ThreadPoolExecutor(callers) as threads:
        following = [threads.submit(made.follow, url, key, model) for _ in range(callers)]
        try:
            yield made
        finally:
            made._ended.set()  # noqa: SLF001 - the callers' own event
        for each in following:
            each.result(120)
