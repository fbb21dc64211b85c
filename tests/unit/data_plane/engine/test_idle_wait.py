"""The busy wait of vLLM's readers, in the vLLM that is installed."""

import zmq

from data_plane.engine import idle_wait


def test_a_reader_polls_for_a_moment_only(monkeypatch, tmp_path):
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    monkeypatch.setattr(SpinCondition.__init__, "__defaults__", SpinCondition.__init__.__defaults__)
    assert SpinCondition.__init__.__defaults__ == (1,), "the only default is that of busy_loop_s"
    idle_wait.install()
    with zmq.Context() as context:
        reader = SpinCondition(is_reader=True, context=context, notify_address=f"ipc://{tmp_path}/notify")
        assert reader.busy_loop_s == idle_wait.BUSY_S
        for socket in (reader.local_notify_socket, reader.write_cancel_socket, reader.read_cancel_socket):
            socket.close(0)
