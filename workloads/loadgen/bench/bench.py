#!/usr/bin/env python3
"""Compares the load generator with the least that a client can be, and with wrk.

Against memcached, the generator and `minimal_client` (in examples/) alternate at each rate; shown are medians over the
rounds, and the medians of the ratios within each round. Against nginx, the closed-loop maximum stands beside wrk's.
Servers are pinned to one CPU, clients to another, so that they do not wait for each other.

Needs memcached, nginx, wrk and taskset, and the crate built with `cargo build --release --bins --examples`.
"""

import argparse
import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CRATE = Path(__file__).resolve().parent.parent
GENERATOR = CRATE / "target/release/parties-loadgen"
MINIMAL = CRATE / "target/release/examples/minimal_client"
CONNECTIONS = 16
GOAL_P99_RATIO = 1.1
GOAL_SENDS = 0.001
START_SECONDS = 5.0

NGINX_CONF = """
worker_processes 1; daemon off; master_process off; user root; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}/root; }}
}}
"""


def free_port() -> int:
    """Returns a TCP port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    """Waits until somebody listens on the port."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port} after {START_SECONDS} s: is the server installed?")


@contextlib.contextmanager
def server(command: list[str], port: int) -> Iterator[None]:
    """Runs a server as long as the block lasts."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield
        finally:
            process.terminate()


def pinned(cpu: int, options: argparse.Namespace, *command: str | Path | int) -> list[str]:
    """The command, kept on one CPU, at the priority asked for."""
    return ["nice", "-n", str(options.nice), "taskset", "-c", str(cpu), *map(str, command)]


def run(command: list[str]) -> str:
    """Runs a client and returns what it printed; the generator's 3 (invalid) is shown in the figures."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in {0, 3}:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr}")
    return done.stdout


def generator(options: argparse.Namespace, *arguments: str | int) -> dict[str, Any]:
    """Runs the generator and returns its summary."""
    line = run(pinned(options.client_cpu, options, GENERATOR, *arguments, "--json")).splitlines()[-1]
    summary: dict[str, Any] = json.loads(line)
    return summary


def compare(rate: int, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Alternates the two clients at one rate."""
    target = f"127.0.0.1:{port}"
    own: list[dict[str, Any]] = []
    least: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        arguments = ("memcached", target, "--rate", rate, "--duration", f"{options.seconds}s", "--connections", CONNECTIONS)
        own.append(generator(options, *arguments))
        least.append(json.loads(run(pinned(options.client_cpu, options, MINIMAL, port, rate, options.seconds))))

    def middle(values: list[int]) -> int:
        return int(statistics.median(values))

    figures: dict[str, Any] = {
        "rate_per_s": rate,
        "rounds": options.rounds,
        "lag_p50_ns": middle([line["lag_ns"]["p50"] for line in own]),
        "lag_p99_ns": middle([line["lag_ns"]["p99"] for line in own]),
        "scheduled": sum(line["scheduled"] for line in own),
        "sent": sum(line["sent"] for line in own),
    }
    for name in ("p50", "p99", "cpu_per_request"):
        values = [line["response_ns"][name] if name in line["response_ns"] else line[f"{name}_ns"] for line in own]
        others = [line[f"{name}_ns"] for line in least]
        figures[f"{name}_ns"], figures[f"minimal_{name}_ns"] = middle(values), middle(others)
        figures[f"{name}_ratio"] = round(statistics.median(a / b for a, b in zip(values, others, strict=True)), 3)
    figures["send_deviation"] = round(1 - figures["sent"] / figures["scheduled"], 6)
    figures["goals_met"] = figures["p99_ratio"] <= GOAL_P99_RATIO and figures["send_deviation"] <= GOAL_SENDS
    return figures


def show(figures: dict[str, Any]) -> None:
    """Prints one comparison."""
    print(f"memcached at {figures['rate_per_s']} requests/s, medians of {figures['rounds']} rounds")
    for name in ("p50", "p99", "cpu_per_request"):
        own, least = figures[f"{name}_ns"] / 1e3, figures[f"minimal_{name}_ns"] / 1e3
        print(f"  {name:<16} {own:8.1f} us, minimal client {least:8.1f} us, ratio {figures[f'{name}_ratio']:.3f}")
    print(f"  send lag p50 {figures['lag_p50_ns'] / 1e3:.1f} us, p99 {figures['lag_p99_ns'] / 1e3:.1f} us")
    print(f"  sent {figures['sent']} of {figures['scheduled']}, {figures['send_deviation']:.4%} short")


def maximum(port: int, options: argparse.Namespace) -> dict[str, Any]:
    """The closed-loop maximum on nginx, of wrk and of the generator."""
    url = f"http://127.0.0.1:{port}/1k.bin"
    own: list[int] = []
    wrk: list[int] = []
    for _ in range(options.rounds):
        arguments = ("http", url, "--closed", "--duration", f"{options.seconds}s", "--connections", 32)
        own.append(generator(options, *arguments)["achieved_per_s"])
        text = run(pinned(options.client_cpu, options, "wrk", "-t1", "-c32", f"-d{options.seconds}s", url))
        found = re.search(r"Requests/sec:\s+([\d.]+)", text)
        wrk.append(round(float(found[1])) if found else 0)
    return {"own_per_s": int(statistics.median(own)), "wrk_per_s": int(statistics.median(wrk))}


def options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=int, nargs="+", default=[5_000, 20_000], help="requests per second (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="alternations at each rate (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=3, help="length of a run (default: %(default)s)")
    parser.add_argument("--client-cpu", type=int, default=0, help="CPU of the clients (default: %(default)s)")
    parser.add_argument("--server-cpu", type=int, default=1, help="CPU of the server (default: %(default)s)")
    parser.add_argument(
        "--nice", type=int, default=0, help="niceness of servers and clients; below 0 needs root (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


def main() -> None:
    """Runs the whole bench."""
    chosen = options()
    for program in (GENERATOR, MINIMAL):
        if not program.exists():
            sys.exit(f"{program} is absent: run `cargo build --release --bins --examples` in {CRATE}")
    result: dict[str, Any] = {"version": 1, "memcached": []}
    port = free_port()
    with server(
        pinned(chosen.server_cpu, chosen, "memcached", "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 1, "-u", "root"), port
    ):
        run(pinned(chosen.client_cpu, chosen, GENERATOR, "memcached", f"127.0.0.1:{port}", "--load-only"))
        for rate in chosen.rates:
            figures = compare(rate, port, chosen)
            show(figures)
            result["memcached"].append(figures)
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "root").mkdir()
        (folder / "root/1k.bin").write_bytes(b"x" * 1024)
        (folder / "nginx.conf").write_text(NGINX_CONF.format(folder=folder, port=port), encoding="utf-8")
        with server(pinned(chosen.server_cpu, chosen, "nginx", "-c", folder / "nginx.conf"), port):
            result["nginx"] = maximum(port, chosen)
    nginx = result["nginx"]
    nginx["ratio"] = round(nginx["own_per_s"] / max(1, nginx["wrk_per_s"]), 3)
    print(f"nginx closed-loop maximum: {nginx['own_per_s']} requests/s, wrk {nginx['wrk_per_s']}, ratio {nginx['ratio']}")
    result["goals_met"] = all(figures["goals_met"] for figures in result["memcached"])
    print("goals met" if result["goals_met"] else "goals not met")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
