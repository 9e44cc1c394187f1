"""A tool server on stdio, written against the protocol and no SDK, so that it can break any rule.

    python raw_server.py VERSION [list-in-pages | list-without-end | list-new-tools-without-end | list-odd-tools |
                                  list-again-without-end |
                                  die-when-listed | list-nonsense]

Its one tool, `act`, does as its argument `text` says.
"""

from __future__ import annotations

import json
import os
import sys
import time

LATEST = "2025-11-25"
"""The newest version of the protocol with a handshake."""
TOOL = {
    "name": "act",
    "description": "Do something with a text.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "outputSchema": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
}


class Refused(Exception):
    """An error of the protocol: code, message, data."""


class RawServer:
    def __init__(self, version: str, fault: str):
        self.version, self.fault = version, fault
        self.has_handshake = version == LATEST
        self.num_calls = 0

    def answer(self, method: str, params: dict) -> dict:
        if self.has_handshake:
            if method == "initialize":
                return self.introduction() | {"protocolVersion": self.version}
        elif method == "initialize":
            supported = {"supported": [self.version], "requested": params["protocolVersion"]}
            raise Refused(-32022, "no handshake here", supported)
        elif method == "server/discover":
            return self.complete(self.introduction() | {"supportedVersions": [self.version]}, can_be_cached=True)
        elif params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") != self.version:
            raise Refused(-32602, "every request says its version")
        match method:
            case "tools/list":
                return self.complete(self.listed(params.get("cursor")), can_be_cached=True)
            case "tools/call":
                return self.complete(self.called(params["arguments"]["text"]))
            case "ping":
                return {}
        raise Refused(-32601, f"unknown method {method}")

    def complete(self, result: dict, can_be_cached: bool = False) -> dict:
        """Add the fields of every result in versions without a handshake."""
        if self.has_handshake:
            return result
        caching = {"ttlMs": 0, "cacheScope": "private"} if can_be_cached else {}
        return {"resultType": "complete", **caching, **result}

    @staticmethod
    def introduction() -> dict:
        return {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}

    def listed(self, cursor: str | None) -> dict:
        match self.fault, cursor:
            case "die-when-listed", _:
                os._exit(3)
            case "list-nonsense", _:
                return {"tools": "none"}
            case "list-odd-tools", _:
                odd = [None, {"description": 3}, {"name": "bare"}, TOOL | {"name": "odd", "inputSchema": {"oneOf": []}}]
                return {"tools": [*odd, {**TOOL, "name": "out", "outputSchema": {"description": 3}}, TOOL]}
            case "list-without-end", _:
                return {"tools": [TOOL], "nextCursor": "more"}
            case "list-new-tools-without-end", _:
                place = int(cursor or 0)
                return {"tools": [TOOL | {"name": f"act_{place}"}], "nextCursor": str(place + 1)}
            case "list-again-without-end", _:
                return {"tools": [TOOL], "nextCursor": str(int(cursor or 0) + 1)}
            case "list-in-pages", None:
                return {"tools": [TOOL | {"name": "act_first"}], "nextCursor": "second"}
        return {"tools": [TOOL]}

    def called(self, text: str) -> dict:
        self.num_calls += 1
        match text:
            case "refuse":
                raise Refused(-32602, "no such place")
            case "refuse with the code of a closed connection":
                raise Refused(-32000, "no such place")
            case "answer without content":
                return {"isError": False}
            case "break the output schema":
                return {"content": [], "structuredContent": {"answer": 3}}
            case "sleep":
                time.sleep(60)
            case "die":
                os._exit(3)
            case "count":
                text = str(self.num_calls)
        return {"content": [], "structuredContent": {"answer": text.upper()}}

    def serve(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            if "id" not in request:
                continue
            reply = {"jsonrpc": "2.0", "id": request["id"]}
            try:
                reply["result"] = self.answer(request["method"], request.get("params") or {})
            except Refused as refused:
                reply["error"] = dict(zip(("code", "message", "data"), refused.args, strict=False))
            if self.fault == "list-in-pages":
                print("this line is no message")
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    RawServer(sys.argv[1], [*sys.argv[2:], ""][0]).serve()
