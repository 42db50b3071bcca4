/* The layout of sequences for the policy losses, and the sums over their tokens, for the host and
 * for GPUs. */
#pragma once

/* Rows [first, end) of a microbatch belong to a sequence; an empty one is unused. */
enum { SEQUENCE_FIRST, SEQUENCE_END, SEQUENCE_BOUNDS };

/* Inputs of a row. A row without a target has no effect. */
typedef enum PolicyTerm {
    POLICY_OLD,       /* the token's log-probability when it was drawn */
    POLICY_REFERENCE, /* its log-probability in the reference; only used with a KL term */
    POLICY_ADVANTAGE,
    POLICY_SHARE,     /* the weight of the row's loss */
    POLICY_RETURN,    /* the target of the row's value; only with values, like the next one */
    POLICY_OLD_VALUE, /* the value before the updates */
    POLICY_TERMS,
} PolicyTerm;

/* Sums over tokens. A divergence is estimated by k3(d) = e^d - 1 - d. */
typedef enum PolicySum {
    POLICY_TOKENS,
    POLICY_SURPRISE,      /* -log p */
    POLICY_CLIPPED,       /* 1 if the bounds removed the token's gradient */
    POLICY_MISMATCH,      /* k3 of d = log p - log p when drawn */
    POLICY_DIFFERENT,     /* 1 if d is not exactly 0 */
    POLICY_KL,            /* k3 of d = log p in the reference - log p */
    POLICY_VALUE_LOSS,    /* of values, before the coefficient; 0 without values, like the next */
    POLICY_VALUE_CLIPPED, /* 1 if value_clip bounds the token's value loss */
    POLICY_SUMS,
} PolicySum;

/* A kernel's scratch for a sequence: its sums, then its loss. */
enum { SEQUENCE_LOSS = POLICY_SUMS, SEQUENCE_NUMBERS };
