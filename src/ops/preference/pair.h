/* The layout of a pair of answers for the preference losses, and the sums over pairs, for the host
 * and for GPUs. */
#pragma once

/* Rows [first, middle) of a microbatch belong to the chosen answer, rows [middle, end) to the
 * rejected one; an empty pair is unused. */
enum { PAIR_FIRST, PAIR_MIDDLE, PAIR_END, PAIR_BOUNDS };

/* Numbers of a pair; REWARD_WINS: 1 if the chosen answer has the larger reward. */
enum { REWARD_CHOSEN, REWARD_REJECTED, REWARD_WINS, REWARD_COUNT };

/* A kernel's scratch for a pair: rewards, then the loss. */
enum { PAIR_LOSS = REWARD_COUNT, PAIR_NUMBERS };
