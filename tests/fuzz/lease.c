/* A libFuzzer entry for lease.json: whatever it holds, it names its holder, or is damaged and written again by who holds it,
 * or it is another's. Owns a lease in the entries' folder as long as the program lives. */
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
