/* What the commands share: the one place that opens a device, and the one that prints an error. */
#include "app/commands.h"

#include "base/log.h"

Device *cmd_open_device(int choice, Precision precision, Error *error) {
    bool cpu = choice == DEVICE_AUTO && !precision_is_bf16(precision);
    return cpu ? device_cpu() : device_open(choice, 0, error);
}

int cmd_fail(const Error *error) {
    log_error("%s", error->message);
    return error->code;
}
