"""The ports that a start of the stack chooses."""

import json

from tenora.stack import program
from tenora.stack.secrets_file import PORT_USES, PORTS, choose_ports

COUNT = len(PORTS) + len(PORT_USES)


def test_no_two_programs_get_one_port_though_none_listens_yet(tmp_path, monkeypatch):
    few = range(20_000, 20_000 + COUNT + 8)
    monkeypatch.setattr(program, "_FREE_PORTS", few)
    ports = choose_ports(tmp_path, ["replica"], gateway=few[0])
    assert len(ports) == COUNT + 1
    assert len(set(ports.values())) == len(ports)


def test_a_start_keeps_the_last_ports_except_one_that_two_programs_had(tmp_path):
    first = choose_ports(tmp_path, ["replica"])
    assert choose_ports(tmp_path, ["replica"]) == first
    (tmp_path / "ports.json").write_text(json.dumps(first | {"replica_engine": first["valkey"]}))
    ports = choose_ports(tmp_path, ["replica"])
    assert {name for name, port in ports.items() if port != first[name]} == {"replica_engine"}
    assert len(set(ports.values())) == len(ports)
