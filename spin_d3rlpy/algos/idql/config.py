"""Settings of IDQL."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Literal

from d3rlpy.models.encoders import EncoderFactory, make_encoder_field

from spin_d3rlpy.algos.actor_critic import ActorCriticConfig
from spin_d3rlpy.algos.config import TPolicy
from spin_d3rlpy.critics.return_bins import RETURN_BINS
from spin_d3rlpy.errors import require_fields
from spin_d3rlpy.search.trust_figures import Search
from spin_d3rlpy.search.trust_switch import SearchMode

# Times `action_flexibility`, where critics value afterstates: they know a place by all actions that
# lead to it. One policy of CoNE stood still next to the goal (-122), as the last step had 1.4 % of
# the likeliest choice's probability; -17 so, and of 21 policies none falls into a pit by it.
RARER_BY_AFTERSTATES = 0.25


@dataclasses.dataclass()
class IDQLConfig(ActorCriticConfig[TPolicy]):
    r"""Critics and values as in IQL; the policy imitates, acting takes the best of its samples.

    .. math::

        a = \operatorname{argmax}_{a' \in \{a_1, .., a_n\}} \min_e Q_e(s, a'), \quad
            a_k \sim \pi(\cdot | s)

    Values decide among actions that the policy takes for likely in the data. A policy that is an
    Action Structure Model (`SPINIDQL`) draws them from the joint distribution and is not trained
    any further; others learn by behavior cloning, without advantage weights.

    With `search_sweeps` the best candidate is only the start of a search (`search.moves`): slots
    change their choices, or two exchange theirs, among what the policy supports, by the value of
    the whole action: give it a `joint_critic`. Where slots are few, several candidates are starts
    (`search.starts`), and the best end acts. Candidates of a search may be drafts, which take fewer
    passes of a network than samples: where it scores pairs of slots and choices two in all, where
    slots are many four (`Policy.draft_several`). With `held_out_share` each critic's search is
    judged by the other critics, on episodes that nothing was trained on (`search.trust`); where
    they do not confirm what it gains, or where that is little against what returns differ by,
    actions are the policy's own: the most likely one, or samples where the critics find these
    surely better.

    How far ahead to look when actions are compared is a question of the data: what follows an
    action long after it can be noise, or all that counts. With `short_gammas` the critics learn
    values by several discounts at once. How rare a choice may be is one, too: critics have seen
    little of rare ones, but these may be the better ones. Trust compares the searches by `gamma`
    and `short_gammas`, by `action_flexibility` and `stricter_flexibilities`, and acts by that one
    whose gain, in returns by `gamma`, the other critics confirm best.

    `predict` draws its candidates with noise that never changes, so that it is a function of the
    observation. The first one, which is the only one where critics are not trusted, is the most
    likely choice of every slot; where samples imitate, its noise is a function of the observation,
    or new in each call where the data have steps that left the observation as it was: there a
    function of it could stay for ever. `sample_action` draws new ones.

    References:
        * Hansen-Estruch et al., IDQL: Implicit Q-learning as an Actor-Critic Method with Diffusion
          Policies, 2023, algorithm 2.
        * Fedus et al., Hyperbolic Discounting and Learning over Multiple Horizons, 2019: values
          by several discounts from one network.
        * Farebrother et al., Stop Regressing: Training Value Functions via Classification for
          Scalable Deep RL, 2024: `return_bins`.

    Args:
        value_encoder_factory: d3rlpy's factory of the encoder of V.
        expectile: tau of V's expectile regression.
        joint_critic: Q functions of the state and the whole action, which can value how choices go
            together, instead of utilities that are combined over slots.
        n_action_samples: candidates per state (n); drafts of pairs are half as many.
        candidate_temperature: of the policy's distribution when candidates are drawn; 0 takes the
            most likely choice of every slot, as a policy without critics would.
        value_temperature: if above 0, `sample_action` draws among its candidates from the softmax
            of their values divided by this.
        search_sweeps: of a search: rounds in which all slots can change, then rounds in which pairs
            of slots can exchange their choices; 0 takes the best candidate.
        action_flexibility: least probability of a choice in the search, relative to the likeliest
            one's in view of all other slots, in (0, 1]. A quarter of it where critics value
            afterstates: other actions that lead to the same place tell them of a rare one.
        held_out_share: share of the episodes by which trust in the critics is measured; 0 trusts
            them. Before the first measurement the policy acts alone.
        short_gammas: discounts in [0, 1) that the search may act by instead of `gamma`. Only with a
            `joint_critic` and `held_out_share`, which choose among them; unused without.
        stricter_flexibilities: values above `action_flexibility` and at most 1 that the search may
            keep to instead. Only with `held_out_share`; unused without.
        return_bins: bins of the distributions of returns that joint critics learn by
            cross-entropy, at twice the learning rate, in place of mean returns by squared errors.
            0 learns means, but where critics value afterstates (21 bins then). Only of one reward
            and with `expectile=0.5`; unused otherwise.
        overfitting_dropout: dropout rate of the joint critics once their errors on held-out
            episodes have surely risen (`training.overfitting`), in [0, 1). Training then continues
            from the weights with the least errors. 0 changes nothing. Only with
            `held_out_share` and `expectile=0.5`, where values are mean returns; unused without.
        state_model_updates: gradient steps of a model of what follows an action, in which searches
            are tried before they act (`search.state_model`); with a budget of seconds, which says
            how many, any number above 0. 0 tries none. Searches leave states to imitation that the
            data do not have (`StateModel.are_unknown`). Only with a `joint_critic` and
            `held_out_share`, one reward and no history, images, masks or rules that see the state,
            and not where only the ends of episodes pay; unused otherwise.
        afterstates: whether joint critics value where an action leads, by the model of what follows
            it, in place of states and actions (`search.afterstates`). They then learn distributions
            of returns, every other one with dropout, in 60 passes over the data at most, and ends
            that cost more than any other step apart (`critics.fatal_ends`). `"auto"`
            is decided by the data when the networks are built: True where the task ends episodes
            and states and actions tell the next state, and this the reward. Only where there can be
            such a model and with `expectile=0.5`; unused otherwise.
        find_own_columns: where no `layout` is known, whether data tell which columns of an
            observation are of which slots (`policies.own_columns`), when the networks are built.
            Only of numbers, without a history, where all slots have equally many choices.
        search: `"auto"` acts as trust decides, `"always"` by the best search, confirmed or not,
            `"never"` by imitation. It may be changed after training: `algo.config.search`.
        reward_weights: of the rewards of a dataset with several, by name. Critics of whole actions
            then learn the values by each reward apart, so that `with_weights` acts by other weights
            without training. Filled with the dataset's when the model is built, if a `joint_critic`
            learns the values of who logged (`expectile=0.5`, no `monte_carlo_share`, no
            `reward_scaler`): only these add up. Otherwise the weighted sum is learned by.
    """

    value_encoder_factory: EncoderFactory = make_encoder_field()
    expectile: float = 0.8
    joint_critic: bool = False
    n_action_samples: int = 32
    candidate_temperature: float = 1.0
    value_temperature: float = 0.0
    search_sweeps: int = 0
    action_flexibility: float = 0.02
    held_out_share: float = 0.0
    short_gammas: list[float] = dataclasses.field(default_factory=list)
    stricter_flexibilities: list[float] = dataclasses.field(default_factory=list)
    return_bins: int = 0
    overfitting_dropout: float = 0.0
    state_model_updates: int = 0
    afterstates: bool | Literal["auto"] = False
    find_own_columns: bool = False
    search: SearchMode = "auto"
    reward_weights: dict[str, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fields(
            self,
            stricter_flexibilities=(
                all(self.action_flexibility < s for s in self.stricter_flexibilities),
                f"all above action_flexibility={self.action_flexibility:g}",
            ),
            action_flexibility=(self.action_flexibility > 0.0, "in (0, 1]"),
            joint_critic=(
                self.joint_critic or self.search_sweeps == 0,
                "True with search_sweeps: the search compares whole actions",
            ),
            n_critics=(
                self.n_critics >= 2 or self.held_out_share == 0.0,
                "of at least 2 with held_out_share: critics judge each other",
            ),
            return_bins=(self.return_bins != 1, "0, or 2 or more"),
            monte_carlo_share=(
                self.monte_carlo_share == 0.0 or len(self.gammas) == 1,
                "0 with short_gammas: returns to the end are by one discount",
            ),
            reward_weights=(
                self.reward_weights is None or (self.n_rewards > 1 and self.values_add_up),
                "None, or of two or more rewards, together with joint_critic=True, expectile=0.5, "
                "monte_carlo_share=0 and no reward_scaler: other values do not add up",
            ),
        )

    @property
    def gammas(self) -> tuple[float, ...]:
        """All discounts that values are learned by; `gamma` is the first one."""
        if not self.joint_critic or self.held_out_share == 0.0:  # nothing chooses among them
            return (self.gamma,)
        return self.gamma, *self.short_gammas

    @property
    def values_add_up(self) -> bool:
        """Whether values by several rewards can be learned apart and added up."""
        return self._learns_means and self.reward_scaler is None

    @property
    def n_rewards(self) -> int:
        """Rewards whose values are learned apart (R)."""
        return 1 if self.reward_weights is None else len(self.reward_weights)

    @property
    def models_states(self) -> bool:
        """Whether policies can be compared in a model of what follows an action.

        Of several rewards and of histories it would be another model.
        """
        is_tested = self.joint_critic and self.held_out_share > 0.0
        has_one_reward = self.reward_weights is None and self.history == 1
        return is_tested and has_one_reward and self.state_model_updates > 0

    @property
    def _learns_means(self) -> bool:
        return self.joint_critic and self.expectile == 0.5 and self.monte_carlo_share == 0.0

    @property
    def values_afterstates(self) -> bool:
        """Whether critics value where an action leads."""
        return self.models_states and self._learns_means and self.afterstates is True

    @property
    def n_bins(self) -> int:
        """Bins of the distributions that critics learn; 0 where they learn means."""
        if self.values_afterstates:
            return self.return_bins or RETURN_BINS
        return self.return_bins if self._learns_means and self.n_rewards == 1 else 0

    @property
    def searches(self) -> list[Search]:
        """Ways to search that trust compares; the first one acts where nothing is compared."""
        rarer = RARER_BY_AFTERSTATES if self.values_afterstates else 1.0
        flexibilities = [rarer * self.action_flexibility]
        if self.search_sweeps > 0 and self.held_out_share > 0.0:
            flexibilities += self.stricter_flexibilities
        return [Search(*way) for way in itertools.product(self.gammas, flexibilities)]
