"""``python -m tenora.stripe_simulator``: a stand-in for Stripe on a loopback port. It moves no real money."""

import argparse
import os
import sys
from pathlib import Path

import uvicorn

from core import telemetry
from core.settings import TelemetrySettings, exit_on_invalid_settings
from tenora.stripe_simulator.app import build_app
from tenora.stripe_simulator.errors import ApiError
from tenora.stripe_simulator.store import AlreadyRunning


def main() -> None:
    """Parse the command line and serve until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m tenora.stripe_simulator", description="Stripe simulator: no real money. Listens on 127.0.0.1."
    )
    parser.add_argument("--port", type=int, required=True, help="loopback port")
    parser.add_argument("--home", type=Path, required=True, help="folder of its state, which survives restarts")
    parser.add_argument(
        "--listener", help="loopback URL that gets all events, signed with TENORA_STRIPE_WEBHOOK_SECRET"
    )
    arguments = parser.parse_args()
    telemetry.set_up("stripe-simulator", TelemetrySettings())
    secret = os.environ.get("TENORA_STRIPE_WEBHOOK_SECRET", "")
    if arguments.listener and not secret.startswith("whsec_"):
        sys.exit("--listener: set TENORA_STRIPE_WEBHOOK_SECRET to the secret that the listener knows (whsec_…)")
    base_url = f"http://127.0.0.1:{arguments.port}"
    try:
        app = build_app(arguments.home, base_url, listener=(arguments.listener, secret) if arguments.listener else None)
    except (AlreadyRunning, ApiError) as error:
        sys.exit(str(error))
    uvicorn.run(
        app, host="127.0.0.1", port=arguments.port, log_level="warning", timeout_graceful_shutdown=5,
        loop="core.event_loop:EventLoop",
    )  # fmt: skip


if __name__ == "__main__":
    with exit_on_invalid_settings():
        main()
