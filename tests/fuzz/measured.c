/* A libFuzzer entry for the two files that only give advice or keys: what `smelt bench` measured, and Amazon's
 * configuration with credentials. Owns a file in the entries' folder and changes the environment. */
#include "advise/measured.h"
#include "store/s3.h"
#include "fuzz.h"

FUZZ(measured) {
    Error error = {0};
    Measured measured = {0};
    S3Settings settings;
    const char *path = fuzz_file("file", data, size);
    if (!measured_read(&measured, path, &error)) require_line(&error);
    measured_free(&measured);
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    setenv("AWS_CONFIG_FILE", path, 1);
    error = (Error){0};
    if (s3_settings_read(&settings, &error)) require(settings.key && *settings.key && settings.secret && settings.attempts > 0);
    else require_line(&error);
    s3_settings_free(&settings);
}
