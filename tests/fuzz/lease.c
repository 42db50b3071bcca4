/* A libFuzzer entry for lease.json: whatever it holds, a lease that is held is lost to it, unless it names the holder,
 * and is not waited for. Owns a lease in the entries' folder as long as the program lives. */
#include "ckpt/lease.h"
#include "fuzz.h"

FUZZ(lease) {
    static Lease *lease;
    Error error = {0};
    if (!lease) lease = lease_take(fuzz_folder(), "run", fuzz_folder(), &error);
    require(lease != NULL);
    fuzz_file("lease.json", data, size);
    bool ours = lease_check(lease, &error);
    if (!ours) require_line(&error);
    error = (Error){0};
    require(lease_await(fuzz_folder(), lease_holder(lease), 0, &error) == ours);
}
