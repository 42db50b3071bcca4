/* Opens libcurl. Owns nothing. Called by requests to S3 servers and to servers of rewards. */
#include "base/curl.h"

#define CURL_NAME(name, type, arguments) "curl_" #name,

bool curl_open(CurlApi *curl, const char *user, Error *error) {
    enum { OLDEST_CURL = 0x075700 /* 7.87: signs additional headers of S3 */ };
    static const char *const files[] = {"libcurl.so.4", NULL}, *const names[] = {CURL_API(CURL_NAME)};
    void *library = library_open(files, RTLD_NOW | RTLD_LOCAL);
    if (!library) return error_set(error, ERROR_USAGE, "%s needs libcurl, which is not installed: install it (Debian: libcurl4)", user);
    if (library_find(library, names, curl) || curl->global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(error, ERROR_USAGE, "libcurl.so.4 is not usable; %s needs libcurl 7.87 or newer", user);
    const curl_version_info_data *version = curl->version_info(CURLVERSION_NOW);
    return version->version_num >= OLDEST_CURL ||
           error_set(error, ERROR_USAGE, "libcurl %s is too old; %s needs 7.87 or newer", version->version, user);
}
