/* The loss of one token, for both back ends. The includer defines POLICY_REAL, POLICY_INLINE and
 * POLICY_EXP before. */
#pragma once

#include "config/policy_kinds.h"
#include "ops/policy/sequence.h"

/* The settings of a loss, in the type of the back end. */
typedef struct PolicyNumbers {
    POLICY_REAL low, high, dual, kl, entropy, penalty, value_clip, value_coefficient;
    int objective, ratio;
} PolicyNumbers;

/* The loss, and its derivative with respect to d (the log of the ratio). */
typedef struct PolicyLoss {
    POLICY_REAL value, slope;
    int clipped;
} PolicyLoss;

/* Returns the loss of a value with the target `target`, and its derivative with respect to the value. The larger
 * of two errors counts: of the value, and of the value clipped to within `clip` of the old one (0: no bound). */
POLICY_INLINE PolicyLoss policy_value_loss(POLICY_REAL clip, POLICY_REAL value, POLICY_REAL old, POLICY_REAL target) {
    POLICY_REAL bounded = clip > 0 && value < old - clip ? old - clip : clip > 0 && value > old + clip ? old + clip : value;
    POLICY_REAL error = value - target, other = bounded - target;
    int clipped = other * other > error * error;
    return (PolicyLoss){(clipped ? other * other : error * error) / 2, clipped ? 0 : error, clipped};
}

/* e^d - 1 - d, exactly 0 for 0. Beyond the bounds, which only broken runs reach, it stays finite. */
POLICY_INLINE POLICY_REAL policy_k3(POLICY_REAL d) {
    d = d > 20 ? 20 : d;
    return d == 0 ? 0 : POLICY_EXP(d) - 1 - d;
}

/* Returns the objective for a log ratio d, which is that of the sequence if the rule says so, of a
 * token with log-probability l. */
POLICY_INLINE PolicyLoss policy_objective(const PolicyNumbers *n, POLICY_REAL d, POLICY_REAL l, POLICY_REAL advantage) {
    POLICY_REAL r = POLICY_EXP(d > 20 ? 20 : d);
    if (n->objective == POLICY_CLIP) {
        int capped = n->dual > 0 && r > n->dual;
        r = capped ? n->dual : r;
        POLICY_REAL bounded = r < 1 - n->low ? 1 - n->low : r > 1 + n->high ? 1 + n->high : r;
        int inside = r * advantage <= bounded * advantage;
        return (PolicyLoss){
            -(inside ? r : bounded) * advantage, inside && !capped ? -r * advantage : 0, advantage != 0 && (!inside || capped)};
    }
    if (n->objective == POLICY_CAP) {
        int capped = r > n->high;
        r = capped ? n->high : r;
        return (PolicyLoss){-r * advantage * l, -r * advantage, capped};
    }
    POLICY_REAL change = POLICY_EXP(l) - POLICY_EXP(l - d);
    int dropped = advantage > 0 ? change > n->high : advantage < 0 && change < -n->low;
    POLICY_REAL kept = dropped ? 0 : r * advantage;
    return (PolicyLoss){n->penalty * d * d - kept, 2 * n->penalty * d - kept, dropped};
}
