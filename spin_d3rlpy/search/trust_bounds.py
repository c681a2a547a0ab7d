"""Bounds of the rules of trust, each with what was measured on its sides.

Which of them decide what, on other tasks than those named here, is in docs/explanation/trust.md;
`python -m tests.measure.decisions` shows what another value decides.
"""

# Share of a search's gain. Critics also agree on what none of them knows: of the searches that the
# careful gain chose, those with 66 to 80 % did harm, and those with 89 % or more paid.
LEAST_CONFIRMED = 0.85
# The same of a mild search that surely gains in the model of states. Critics confirmed 76 % of what
# one gained for a city's signals, whose rewards are noisy: it returned -1375, imitation -1819. Of
# others with 0.75 to 0.80, which surely gained there, too, those of signals and elevators lost.
# And of one by `gamma` without such a model: on ICU-Sepsis they confirm 0.79 to 0.84 of searches
# that half as long a training finds, and 0.96 after a whole one; survival is 0.81 (imitation 0.79).
LEAST_CONFIRMED_OF_MILD = 0.75
# Of the standard deviation of returns. A search that gained 0.005 of it returned 46 instead of
# imitation's 273 with 103 % confirmed (finger-spin); those that paid gained 0.02 to 0.46 of it.
LEAST_GAIN = 0.01
# The same of what is confirmed less what is not, where less is confirmed. Of such searches those
# that gained 0.02 of it were a matter of luck; with few noisy data, those with 58 to 79 % confirmed
# and careful gains of 0.08 to 0.43 all were better than imitation (examples/offers).
LEAST_CAREFUL_GAIN = 0.05
# Slots that a search changes of the most likely action, divided by those that samples change, where
# neither critics confirm a large gain of one step of many, nor a model of states. Mild searches
# hardly lead where the data do not: one with 1.1 returned 0.79 instead of 0.22 on a small ward. One
# with 1.5 to 1.9 wrote to tired customers, -2 instead of 5: their states do not tell, nor do
# critics. Of searches with 75 to 80 % confirmed, which a model of states surely found to gain, one
# with 1.35 returned less than imitation (life), and some with 1.45 (signals, elevators).
MOST_CHANGES = 1.25
# The same of one by `gamma`, of which critics confirm 75 %, and which no such model tries. Those
# of ICU-Sepsis, which pay, have 1.27 to 1.37.
MOST_CHANGES_BY_GAMMA = 1.4
# The same where the task ends episodes, above which 5 % of the spread of returns in the model of
# states is not enough. Those with 1.3 to 1.9 that it lets act are right (landers, balance, reactor,
# poles, trucks) but for transport's; by one with 3.6, of which it found 20 %, landers crash.
MOST_CHANGES_WITH_ENDS = 2.0
# Entropy of a slot's choices as a share of a uniform one's, where the most likely one is hardly
# likelier than others and would be taken every time. Of logs with 0.97 and 0.98 (collectors, jobs)
# it returns -7 and -12.4, samples 18 and -6.7; with less it is the better of both in 21 of 26.
LEAST_VARIED = 0.95
# Of the standard deviation of returns, of a search by a shorter discount that no model of states
# tries. Its critics leave out what comes later, and those by `gamma` may know little of it. One
# that gained 0.03 of it shot, did not turn and returned 3.2, imitation 15.9 (ViZDoom); another
# gained 0.055, 86 % of it confirmed, and wrote to tired customers: -2 instead of 5. Those that
# paid gained 0.08 or more.
LEAST_SHORT_GAIN = 0.07
# Times what the best held-out episode returned more than the mean in each step, where no model of
# states tells what follows. Gains of all steps add up, and critics that agree on far more are
# wrong together: six and nine times it on assembly (searches return -4, the log 6.5); where they
# were right 2.5 (clinic) and 4 (dials).
MOST_IMPLIED = 5.0
# The same of what a search returns in the model of states more than imitation, where critics
# confirm less. Where the log's rewards are noisy they confirm a third of what pays (campaigns: 17
# in the model, 10 in truth, of a spread of 12). Gains of 0.17 to 0.36 were losses on elevators and
# signals, larger ones on none of 13 tasks. And of any search that changes more than samples do:
# some that gained 0.19 and 0.27 in it returned 37 and 255 (humanoid-stand's mixed and medium
# data; imitation 347 and 321).
LEAST_MODELED_GAIN = 0.4
# Of what critics confirm of the mildest search by `gamma`, of one by a shorter discount that the
# model finds large. On campaigns 0.32 of it, by discount 0, and 11 +- 1 in the model returned -12.
# Of 17 with more, where the mildest one gained little (lanes, playlists, irrigation, power plants,
# packets), none surely returned less than imitation, and 11 surely more.
LEAST_OF_MILDEST = 0.5
# Of the variance of what logged actions return, which a model of states tells. Of epidemic,
# batteries, conventions, crane and power plants it tells 0.74 to 0.94; of 54 gains that it surely
# found there and on two more, 51 are true. Of campaigns it tells 0.48 and 0.65 (two logs), of dams
# 0.61, of signals none, and finds gains that are not.
LEAST_TOLD_RETURNS = 0.7
# Of the log's `persistence`, from which on its policies may be several, that are better and worse.
# Which of them a state is of tells returns there, whatever actions do: of mild searches critics
# confirmed 67 and 78 %, and the model of states found 2.3 and 3.2 (10 and 14 % of the spread of
# returns), by which humanoid-stand's mixed data return 81 and 172, by imitation 341 and 356.
# Robots' mixed data have 0.84 to 0.98; of 88 other trainings one decision depends on it (kilns).
LEAST_MIXED = 0.5
# Of a gain that is not large, part of the way: critics that confirm less of each search are far
# from 85 %. Of searches that acted in the end they confirmed 70 % after a quarter of their time.
LEAST_IN_REACH = 0.6
# Standard errors in the model of states by which a gain is one. Up to six searches are tried there,
# each in up to four times as many states while it is not sure, which is many chances for luck: by
# two, searches that gained 7 +- 3 and 4.5 +- 2 returned less than imitation (finger-spin), one
# that gained 3 +- 1 returned -190 to -350 (elevators with a layout; the log -57).
SURE_IN_MODEL = 3.0
# Share of the numbers of the states that a search leads to there, which are beyond what 99 % of the
# data have. Nobody knows what is paid there: where the log keeps wells from running dry the model
# knows of no fine for that, and of searches that empty them it found 9 and 27, in truth -121 and
# -106 (70 and 65 %), with another log 12 and -47 (13 %). Boilers that burst in the cold 6 and -663
# (75 %). Of those that truly gained only rooms have more, which nobody heated enough (10 to 15 %).
MOST_BEYOND = 0.1
# The same of the policy's most likely action. It leaves out what the log's policy did by chance,
# and can lead elsewhere: of ten reservoirs, a third of whose gates were set by chance, it brings
# some beyond what the log has, and returns -314,000, samples -222,000 like the log (the model finds
# 67,000 more by it). Where it is right its share is 0 to 0.4 %.
MOST_BEYOND_OF_LIKELIEST = 0.05
# Standard errors there, too. Searches are tried in the same states, where what one gains more than
# another is much surer than what each of them gains.
LEVEL = 0.5
NOT_TRIED = 1e30  # standard error of what was not measured; files hold finite numbers
ANY_ROOM = 1e30  # it was not measured
ALL_UNTOLD = 1e30  # of a model of states that is not believed, whatever a search gains in it
LEAST_STATES = 32  # fewer do not tell
