/* Chooses the S3 server and credentials from the variables and files of Amazon's tools, in their
 * order: variables, then the profile's section of the credentials file, then of the config file.
 * Called by s3_request.c. Settings own their strings, which are wiped before they are freed. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "store/s3.h"

/* The sources of each string of S3Settings: its key in a profile, and its variables; the first one
 * that is set wins. The credentials come first. */
typedef struct CredentialSource {
    size_t offset;
    const char *key, *variables[2];
} CredentialSource;
static const CredentialSource sources[] = {
    {offsetof(S3Settings, key), "aws_access_key_id", {"AWS_ACCESS_KEY_ID"}},
    {offsetof(S3Settings, secret), "aws_secret_access_key", {"AWS_SECRET_ACCESS_KEY"}},
    {offsetof(S3Settings, token), "aws_session_token", {"AWS_SESSION_TOKEN"}},
    {offsetof(S3Settings, region), "region", {"AWS_REGION", "AWS_DEFAULT_REGION"}},
    {offsetof(S3Settings, endpoint), "endpoint_url", {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}},
    {offsetof(S3Settings, authorities), "ca_bundle", {"AWS_CA_BUNDLE"}},
};
enum { CREDENTIALS = 3, SOURCES = sizeof sources / sizeof *sources };

static char **setting_of(S3Settings *settings, int source) { return (char **)((char *)settings + sources[source].offset); }

static const char *variable(const char *name) {
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] ? value : NULL;
}

/* Sets a setting unless it has a value. */
static void offer_setting(char **setting, const char *value) {
    if (!*setting && value && value[0]) *setting = memory_copy_string(value);
}

static char *strip_blanks(char *text) {
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1])) text[--length] = '\0';
    return text;
}

/* Returns whether the line is "[NAME]", or "[profile NAME]" as in the config file. */
static bool is_section(char *line, const char *profile) {
    static const char label[] = "profile ";
    char *end = strchr(line, ']');
    if (!end) return false;
    *end = '\0';
    char *name = strip_blanks(line + 1);
    if (strncmp(name, label, sizeof label - 1) == 0) name = strip_blanks(name + sizeof label - 1);
    return strcmp(name, profile) == 0;
}

static void offer_line(S3Settings *settings, char *line) {
    char *equals = strchr(line, '=');
    if (!equals || line[0] == ' ' || line[0] == '\t') /* indented lines belong to nested settings */
        return;
    *equals = '\0';
    const char *name = strip_blanks(line), *value = strip_blanks(equals + 1);
    for (int i = 0; i < SOURCES; i++)
        if (strcmp(name, sources[i].key) == 0) offer_setting(setting_of(settings, i), value);
}

/* An absent file sets nothing. */
static bool offer_file(S3Settings *settings, const char *path, const char *profile, Error *error) {
    enum { MOST_BYTES = 1 << 20 };
    bool inside = false;
    int64_t bytes;
    char *text = file_read(path, MOST_BYTES, &bytes, error);
    for (char *line, *rest = text; (line = strsep(&rest, "\n"));) {
        if (line[0] == '[') inside = is_section(line, profile);
        else if (inside && line[0] != '#' && line[0] != ';') offer_line(settings, line);
    }
    if (!text) return error->finding == FINDING_ABSENT || error_recode(error, ERROR_USAGE);
    explicit_bzero(text, (size_t)bytes);
    free(text);
    return true;
}

/* Returns the file that a variable names, or the usual one of the home folder. */
static char *file_path(const char *name, const char *usual) {
    const char *given = variable(name), *home = variable("HOME");
    return given ? memory_copy_string(given) : memory_format("%s/.aws/%s", home ? home : "", usual);
}

void s3_settings_free(S3Settings *settings) {
    for (int i = 0; i < SOURCES; i++) {
        char *value = *setting_of(settings, i);
        if (value) explicit_bzero(value, strlen(value));
        free(value);
    }
    *settings = (S3Settings){0};
}

bool s3_settings_read(S3Settings *settings, Error *error) {
    enum { ATTEMPTS = 8, MOST_ATTEMPTS = 100 };
    *settings = (S3Settings){0};
    SCOPED(s3_settings_free) S3Settings files = {0};
    const char *profile = variable("AWS_PROFILE") ? variable("AWS_PROFILE") : "default";
    SCOPED_FREE char *credentials = file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    SCOPED_FREE char *config = file_path("AWS_CONFIG_FILE", "config");
    if (!offer_file(&files, credentials, profile, error) || !offer_file(&files, config, profile, error)) return false;
    /* All credentials come from one source, because a token does not fit another source's key. */
    const bool from_variables = variable("AWS_ACCESS_KEY_ID") && variable("AWS_SECRET_ACCESS_KEY");
    for (int i = 0; i < SOURCES; i++) {
        char **setting = setting_of(settings, i);
        if (i >= CREDENTIALS || from_variables)
            for (int j = 0; j < 2; j++) offer_setting(setting, variable(sources[i].variables[j]));
        if (i >= CREDENTIALS || !from_variables) offer_setting(setting, *setting_of(&files, i));
    }
    offer_setting(&settings->region, "us-east-1");
    int attempts = variable("AWS_MAX_ATTEMPTS") ? atoi(variable("AWS_MAX_ATTEMPTS")) : 0;
    settings->attempts = attempts >= 1 && attempts <= MOST_ATTEMPTS ? attempts : ATTEMPTS;
    if (settings->key && settings->secret) return true;
    s3_settings_free(settings);
    return error_set(error, ERROR_USAGE,
        "no S3 credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or add the profile \"%s\" to %s", profile, credentials);
}
