"""What a check found: claims that hold or not, claims that nobody could judge here, and figures."""

from __future__ import annotations

from typing import Any

PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"


class Findings:
    """What one check found so far."""

    def __init__(self) -> None:
        self.claims: list[dict[str, Any]] = []
        self.figures: dict[str, Any] = {}

    def holds(self, claim: str, is_so: bool, detail: str = "") -> bool:
        """Notes whether a claim holds; `detail` says what was seen where it does not."""
        self.claims.append(
            {"claim": claim, "holds": bool(is_so), "detail": "" if is_so else detail}
        )
        return bool(is_so)

    def not_judged(self, claim: str, why: str) -> None:
        """Notes a claim that cannot be judged here."""
        self.claims.append({"claim": claim, "holds": None, "detail": why})

    def figure(self, name: str, value: Any) -> None:
        """Notes a figure, for docs/measurements."""
        self.figures[name] = value

    def outcome(self) -> tuple[str, str]:
        """The outcome and its reason. Without one claim that was judged the check has not run."""
        broken = [one for one in self.claims if one["holds"] is False]
        open_ = [one for one in self.claims if one["holds"] is None]
        held = len(self.claims) - len(broken) - len(open_)
        if broken:
            reason = "; ".join(_said(one) for one in broken)
            return FAIL, reason
        not_judged = "; ".join(_together(open_))
        if not held:
            return NOT_RUN, not_judged or "nothing was judged"
        claims = "1 claim holds" if held == 1 else f"{held} claims hold"
        return PASS, f"{claims}; not judged: {not_judged}" if open_ else claims

    def report(self) -> dict[str, Any]:
        """All of it, for JSON."""
        outcome, reason = self.outcome()
        return {
            "outcome": outcome,
            "reason": reason,
            "claims": self.claims,
            "figures": self.figures,
        }


def _together(claims: list[dict[str, Any]]) -> list[str]:
    """Claims with the same detail as one: the first, and how many more."""
    by_detail: dict[str, list[str]] = {}
    for one in claims:
        by_detail.setdefault(one["detail"], []).append(one["claim"])
    return [
        f"{first}{f' and {len(others)} more' if others else ''}: {detail}"
        for detail, (first, *others) in by_detail.items()
    ]


def _said(claim: dict[str, Any]) -> str:
    return f"{claim['claim']}: {claim['detail']}" if claim["detail"] else claim["claim"]
