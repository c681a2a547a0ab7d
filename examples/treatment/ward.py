"""A ward where a prescription is six doses at once, small enough to know its best policy exactly.

Diseases, drugs and effects are invented: the results are not medicine. A patient has a kind
(diagnosis, kidneys, heart, allergy) that stays, a response to treatment (worse, steady, better) and
a severity from 1 to 5. Today's prescription changes tomorrow's response, which changes severity
the day after: outcomes are late. At severity 0 a patient is discharged (1), at 6 dies (-1), and a
day costs 0.01, and 0.02 more for a pair of drugs that harms. Nothing is discounted.
"""

import itertools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

DRUGS = {
    "antibiotic": ["none", "low", "medium", "high"],
    "steroid": ["none", "low", "high"],
    "diuretic": ["none", "low", "medium", "high"],
    "anticoagulant": ["none", "low", "high"],
    "vasopressor": ["none", "low", "medium", "high"],
    "sedative": ["none", "low", "high"],
}
NVEC = [len(doses) for doses in DRUGS.values()]
ACTIONS = np.array(list(itertools.product(*map(range, NVEC))))  # (1728, 6) numbers of doses

DIAGNOSES = ["pneumonia", "sepsis", "heart failure", "embolism"]
SHARES = {  # of the patients, by column of KINDS
    "diagnosis": [0.3, 0.25, 0.25, 0.2],
    "poor_kidneys": [0.7, 0.3],
    "weak_heart": [0.7, 0.3],
    "allergic": [0.8, 0.2],
}
KINDS = np.array(list(itertools.product(*(range(len(p)) for p in SHARES.values()))))  # (32, 4)
N_RESPONSES, N_SEVERITIES = 3, 5  # a state is [kind, response, severity - 1]
START_RESPONSE = np.array([0.5, 0.5, 0.0])
START_SEVERITY = np.array([0.0, 0.3, 0.4, 0.3, 0.0])

DISCHARGE, DEATH, DAY, PAIR = 1.0, -1.0, -0.01, -0.02
# By response: the probability that severity falls by one, and that it rises.
FALLS, RISES = np.array([0.03, 0.12, 0.6]), np.array([0.6, 0.12, 0.03])
EASED = 0.5  # probability that much steroid lowers a severity of 4 or 5 at once
LEAST_EASED = 4


def harmful_pairs(actions: Array) -> Array:
    """How many harmful pairs of drugs each of the actions `(n, 6)` has, `(n,)`."""
    antibiotic, steroid, diuretic, anticoagulant, vasopressor, sedative = actions.T
    bleeding = (steroid > 0) & (anticoagulant > 0)
    kidneys = (antibiotic > 1) & (diuretic > 1)
    circulation = (vasopressor > 0) & (sedative > 0)
    pairs: Array = bleeding.astype(int) + kidneys + circulation
    return pairs


def benefit(kinds: Array, actions: Array) -> Array:
    """How much actions `(n, 6)` help kinds of patients `(n, 4)`, about -5 to 3, `(n,)`."""
    diagnosis, poor_kidneys, weak_heart, allergic = kinds.T
    antibiotic, steroid, diuretic, anticoagulant, vasopressor, sedative = actions.T
    # Poor kidneys keep an antibiotic in the blood, and a weak heart feels a vasopressor more.
    antibiotic = np.where(antibiotic > 0, antibiotic + poor_kidneys, 0)
    vasopressor = np.where(vasopressor > 0, vasopressor + weak_heart, 0)
    # For each diagnosis: what works together, and what one of it does alone.
    together = np.choose(
        diagnosis,
        [
            ((antibiotic == 2) | (antibiotic == 3)) & (steroid == 1),
            (antibiotic == 3) & ((vasopressor == 2) | (vasopressor == 3)),
            (diuretic >= 2) & (vasopressor == 1 + weak_heart),
            (anticoagulant == 2) & (sedative == 1),
        ],
    )
    alone = np.choose(
        diagnosis,
        [
            0.5 * (antibiotic > 1) - 1.0 * (steroid > 0),
            0.5 * (antibiotic > 1) - 1.0 * (vasopressor > 0),
            0.5 * (diuretic > 1) - 1.0 * (vasopressor > 0),
            0.5 * (anticoagulant > 0) - 1.0 * (sedative > 0),
        ],
    )
    result: Array = np.where(together, 3.2, alone) - 0.2 * (actions > 0).sum(1)
    result -= 2.0 * harmful_pairs(actions)
    result -= 2.0 * (antibiotic == 4) + 2.0 * (vasopressor == 4)  # too much for these patients
    result -= 2.0 * ((antibiotic > 0) & (allergic == 1) & (steroid == 0))  # a steroid prevents it
    result -= 2.0 * (steroid == 2)  # helps today, and harms later
    return result


def _moves() -> Array:
    """Probabilities of an action's effects by kind and action, `(32, 1728, 6)`.

    Effects are: the response gets better, stays or gets worse, without and with easing at once.
    """
    pairs = np.indices((len(KINDS), len(ACTIONS))).reshape(2, -1)
    good = 1.0 / (1.0 + np.exp(-0.5 - benefit(KINDS[pairs[0]], ACTIONS[pairs[1]])))
    moves = np.stack([good, 0.5 * (1.0 - good), 0.5 * (1.0 - good)], axis=1)
    eases = np.where(ACTIONS[pairs[1], 1] == 2, EASED, 0.0)[:, None]
    both = np.concatenate([moves * (1.0 - eases), moves * eases], axis=1)
    return both.reshape(len(KINDS), len(ACTIONS), 6)


MOVES = _moves()
DAYS = DAY + PAIR * harmful_pairs(ACTIONS)  # what a day costs, (1728,)


def _values_after(values: Array) -> Array:
    """Expected values `(32, 3, 5, 6)` after each effect, from those of states `(32, 3, 5)`."""
    ends = np.full((len(KINDS), N_RESPONSES, 1), DISCHARGE), np.full_like(values[..., :1], DEATH)
    ended = np.concatenate([ends[0], values, ends[1]], axis=2)  # severities 0 to 6
    after = np.empty((*values.shape, 6))
    for effect, response, severity in itertools.product(range(6), range(3), range(1, 6)):
        eased, move = divmod(effect, 3)
        now = severity - (eased and severity >= LEAST_EASED)
        then = ended[:, min(max(response + 1 - move, 0), 2)]
        falls, rises = FALLS[response], RISES[response]
        after[:, response, severity - 1, effect] = (
            falls * then[:, max(now - 1, 0)]
            + rises * then[:, now + 1]
            + (1 - falls - rises) * then[:, now]
        )
    return after


def optimum() -> tuple[Array, Array]:
    """Values `(32, 3, 5)` of the best policy, and its actions' rows in ACTIONS, by iteration."""
    values, change = np.zeros((len(KINDS), N_RESPONSES, N_SEVERITIES)), 1.0
    while change > 1e-9:
        after = _values_after(values).reshape(len(KINDS), -1, 6)
        q = DAYS + after @ MOVES.transpose(0, 2, 1)  # (32, 15, 1728)
        new = q.max(2).reshape(values.shape)
        change, values = np.abs(new - values).max(), new
    return values, q.argmax(2).reshape(values.shape)


def policy_values(probabilities: Array) -> Array:
    """Exact values `(32, 3, 5)` of a policy, from probabilities of actions `(32, 3, 5, 1728)`."""
    moves = np.einsum("krsa,kae->krse", probabilities, MOVES)
    costs = probabilities @ DAYS
    values, change = np.zeros(moves.shape[:3]), 1.0
    while change > 1e-9:
        new = costs + (_values_after(values) * moves).sum(-1)
        change, values = np.abs(new - values).max(), new
    return values


def at_admission(values: Array) -> float:
    """The mean of states' values `(32, 3, 5)` over patients who are admitted."""
    shares = list(SHARES.values())
    kinds = np.prod([np.take(p, KINDS[:, i]) for i, p in enumerate(shares)], axis=0)
    return float(np.einsum("krs,k,r,s->", values, kinds, START_RESPONSE, START_SEVERITY))


def admit(n: int, rng: np.random.Generator) -> Array:
    """States `(n, 3)` of new patients: kind, response, severity."""
    columns = [rng.choice(len(p), n, p=p) for p in SHARES.values()]
    kind = np.ravel_multi_index(columns, [len(p) for p in SHARES.values()])
    response = rng.choice(N_RESPONSES, n, p=START_RESPONSE)
    return np.stack([kind, response, 1 + rng.choice(N_SEVERITIES, n, p=START_SEVERITY)], axis=1)


def next_day(states: Array, actions: Array, rng: np.random.Generator) -> Array:
    """States `(n, 3)` after actions `(n, 6)`; severities of 0 and 6 are the ends."""
    kind, response, severity = states.T
    moves = MOVES[kind, np.ravel_multi_index(tuple(actions.T), NVEC)]
    effect = (rng.random((len(states), 1)) > moves.cumsum(1)).sum(1).clip(max=5)
    eased = (effect >= 3) & (severity >= LEAST_EASED)
    chance = rng.random(len(states))
    falls, rises = FALLS[response], RISES[response]
    change = np.where(chance < falls, -1, np.where(chance < falls + rises, 1, 0))
    new_response = (response + 1 - effect % 3).clip(0, N_RESPONSES - 1)
    return np.stack([kind, new_response, (severity - eased + change).clip(0, 6)], axis=1)


def reward(actions: Array, severity: Array) -> Array:
    """Of days with these actions `(n, 6)` and severities `(n,)` at their ends."""
    ends = DISCHARGE * (severity == 0) + DEATH * (severity == 6)
    rewards: Array = DAY + PAIR * harmful_pairs(actions) + ends
    return rewards
