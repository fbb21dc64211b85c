"""The commands in docs/how-to/use-credits.md, run as they stand there."""

import re
import shlex
from pathlib import Path
from string import Template

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "use-credits.md"


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def test_every_command_of_the_page_is_accepted(shared_api):
    tenant = shared_api.tenant()
    values = {
        "TENORA_CONTROL_URL": shared_api.url, "TENORA_ADMIN_KEY": shared_api.admin_secret, "TENORA_API_KEY": tenant.key,
        "TENANT": tenant.id, "KEY": tenant.key_id, "LOT": "",
    }  # fmt: skip
    assert len(commands()) == 12
    for command in commands():
        words = shlex.split(Template(command.replace("'$KEY'", "$KEY")).substitute(values))
        assert words.pop(0) == "curl"
        method, headers, body, url = None, {}, None, ""
        while words:
            match words.pop(0):
                case "-X":
                    method = words.pop(0)
                case "-H":
                    name, _, value = words.pop(0).partition(": ")
                    headers[name] = value
                case "-d":
                    body = words.pop(0)
                case url:
                    pass
        answer = shared_api.anyone.request(method or ("POST" if body else "GET"), url, headers=headers, content=body)
        assert answer.is_success, (command, answer.text)
        if "priority" in (body or ""):
            assert answer.json()["status"] == "active"
        elif '"paid"' in (body or ""):
            values["LOT"] = answer.json()["id"]
    assert tenant.http.get("/api/v1/credits").json()["balance_nanos"] == 10_000_000_000
