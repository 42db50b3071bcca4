/* How a pair of answers is given to the preference losses, and what is added up over pairs: for the host and for GPUs. */
#pragma once

/* Rows [first, middle) of a microbatch are of the chosen answer, [middle, end) of the rejected one; an empty pair is none. */
enum { PAIR_FIRST, PAIR_MIDDLE, PAIR_END, PAIR_BOUNDS };

/* Of a pair; REWARD_WINS: 1 where the chosen answer has the larger reward. */
enum { REWARD_CHOSEN, REWARD_REJECTED, REWARD_WINS, REWARD_COUNT };

/* Scratch of a kernel for a pair: rewards, then the loss. */
enum { PAIR_LOSS = REWARD_COUNT, PAIR_NUMBERS };
