/* Files of log-probabilities of a reference: refused, or each pair is found by its token, and no other is. Owns a file in the
 * entries' folder. */
#include "fuzz.h"
#include "run/reference.h"

FUZZ(reference) {
    const ReferenceKey key = {.content = 7, .length = 64};
    Reference reference;
    Error error = {0};
    require(reference_open(&reference, fuzz_file("reference", data, size), &key, &error));
    if (!reference_is_open(&reference)) {
        require(!reference_find(&reference, 0));
        return;
    }
    require(reference.count > 0 && (size_t)reference.count * sizeof(ReferencePair) < size);
    for (int64_t i = 0; i < reference.count; i++) {
        require(reference_find(&reference, reference.pairs[i].token) == &reference.pairs[i]);
        require(i == 0 || reference.pairs[i].token > reference.pairs[i - 1].token);
    }
    reference_close(&reference);
}
