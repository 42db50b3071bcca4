/* A libFuzzer entry for the first bytes of a file of text: what is not text is named with what to do, and a zero byte is
 * never text. */
#include "data/pack_internal.h"
#include "fuzz.h"

FUZZ(not_text) {
    NotText found = {0};
    bool named = not_text(data, size, &found);
    require(named == (found.what != NULL) && named == (found.advice != NULL));
    require(!named || (*found.what && *found.advice));
    require(named || !memchr(data, 0, size));
}
