"""What no prescription of the ward may have: `report --rule rules.py:no_harmful_pair`."""

import torch

DRUGS = ["antibiotic", "steroid", "diuretic", "anticoagulant", "vasopressor", "sedative"]
MOST_DOSES = 4
# In each pair: from which dose on the drugs harm together.
PAIRS = [
    {"steroid": 1, "anticoagulant": 1},
    {"antibiotic": 2, "diuretic": 2},
    {"vasopressor": 1, "sedative": 1},
]


def no_harmful_pair(partial: torch.Tensor) -> torch.Tensor:
    """Allowed doses `(R, 6, 4)` in view of partial prescriptions `(R, 6)`, -1 where open."""
    allowed = torch.ones(*partial.shape, MOST_DOSES, dtype=torch.bool, device=partial.device)
    for pair in PAIRS:
        (one, least), (other, least_other) = [(DRUGS.index(k), v) for k, v in pair.items()]
        allowed[partial[:, one] >= least, other, least_other:] = False
        allowed[partial[:, other] >= least_other, one, least:] = False
    return allowed
