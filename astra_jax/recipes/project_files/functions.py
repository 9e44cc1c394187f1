"""Tools that the policy may call: each function is one, and its docstring tells the policy what it does.

Data stand in TABLES, apart from the code, so that no function holds an answer.
"""

from typing import Any

TABLES: dict[str, dict[str, Any]] = {
    "stalls": {
        "Amber Fox": "Mill Lane 4",
        "Calm Otter": "Quay 9",
        "Grey Heron": "Mill Lane 7",
        "Jade Falcon": "Park Row 2",
        "Quick Badger": "Quay 3",
        "Silver Lynx": "Park Row 8",
    },
    "rents": {
        "Mill Lane 4": 310,
        "Quay 9": 265,
        "Mill Lane 7": 290,
        "Park Row 2": 345,
        "Quay 3": 230,
        "Park Row 8": 275,
    },
    "hours": {
        "Mill Lane 4": "07:30",
        "Quay 9": "06:00",
        "Mill Lane 7": "08:15",
        "Park Row 2": "09:00",
        "Quay 3": "05:45",
        "Park Row 8": "10:30",
    },
}


def find_stall(owner: str) -> str:
    """Find the market stall of an owner.

    Args:
        owner: Full name of the owner.
    """
    return TABLES["stalls"][owner]


def get_rent(stall: str) -> int:
    """Get the monthly rent of a market stall in euros."""
    return TABLES["rents"][stall]


def get_opening_hour(stall: str) -> str:
    """Get the hour at which a market stall opens."""
    return TABLES["hours"][stall]
