/* What the commands share: the one place that prints an error. */
#include "cmd/cmd.h"

#include "base/log.h"

int cmd_fail(const Error *error) {
    log_error("%s", error->message);
    return error->code;
}
