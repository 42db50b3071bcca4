/* A libFuzzer entry for the labels that stand before the messages of ranks that have met: any other label than the
 * expected one is refused. The data behind a label has the size that the receiver gave, so nothing else is parsed. */
#include "comm/comm_internal.h"
#include "fuzz.h"

FUZZ(label) {
    Transfer transfer = {.receive = true,
        .peer = 1,
        .label = {.magic = LABEL_MAGIC, .group = 7, .sequence = 9, .total = 64, .bytes = 256, .operation = 1, .name = "gradients"}};
    Error error = {0};
    memcpy(&transfer.seen, data, size < sizeof transfer.seen ? size : sizeof transfer.seen);
    bool same = memcmp(&transfer.seen, &transfer.label, sizeof transfer.label) == 0;
    require(label_check(&transfer, &error) == same);
    if (!same) require_line(&error);
}
