/* Owns the library, the socket until the server does, and the texts. */
#include "http/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/scope.h"
#include "comm/socket.h"

#define HTTP_NAME(name, type, arguments) "MHD_" #name,

/* Returns true if `text` is empty or ":DIGITS". */
static bool is_port(const char *text) { return *text == '\0' || (*text == ':' && text[1 + strspn(text + 1, "0123456789")] == '\0'); }

/* `host` is "NAME", "NAME:PORT", "[ADDRESS]" or "[ADDRESS]:PORT". */
bool http_host_is_ours(const HttpListener *listener, const char *host) {
    struct in6_addr address;
    char name[256];
    bool bracket = host && *host == '[';
    size_t length = host ? strcspn(host += bracket, bracket ? "]" : ":") : 0;
    if (length == 0 || length >= sizeof name || (bracket && host[length] != ']') || !is_port(host + length + bracket)) return false;
    memcpy(name, host, length);
    name[length] = '\0';
    return inet_pton(bracket ? AF_INET6 : AF_INET, name, &address) == 1 || strcasecmp(name, "localhost") == 0 ||
           strcasecmp(name, listener->host) == 0;
}

static bool open_microhttpd(HttpListener *listener, const char *command, Error *error) {
    static const char *const files[] = {"libmicrohttpd.so.12", NULL}, *const names[] = {HTTP_API(HTTP_NAME)};
    listener->library = library_open(files, RTLD_NOW | RTLD_LOCAL);
    if (!listener->library) return error_set(error, ERROR_USAGE, "%s needs libmicrohttpd: install it (Debian: libmicrohttpd12)", command);
    return !library_find(listener->library, names, &listener->api) ||
           error_set(error, ERROR_USAGE, "libmicrohttpd.so.12 is too old: %s needs 0.9.73 or newer", command);
}

static bool is_any(const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Returns the URL for a browser. 0.0.0.0 means all addresses of this machine and cannot be opened
 * itself. */
static char *describe_url(const struct sockaddr_storage *address) {
    char number[SOCKET_TEXT];
    bool wide = address->ss_family == AF_INET6;
    struct sockaddr_storage seen = *address, elsewhere;
    Error ignored = {0};
    if (is_any(address) && socket_resolve(wide ? "2001:db8::1" : "192.0.2.1", 0, &elsewhere, &ignored))
        seen = socket_local_address(&elsewhere);
    socket_describe(&seen, number);
    return memory_format(wide ? "http://[%s]:%d/" : "http://%s:%d/", number, socket_port(address));
}

/* Says why nothing can listen at `place`, and which setting to change. */
static bool refuse_address(const HttpPlace *place, Error *error) {
    const int reason = errno;
    SCOPED_FREE char *any = place->setting ? memory_format("%s=%s:0", place->setting, place->host) : memory_copy_string("port=0");
    SCOPED_FREE char *advice = reason == EADDRINUSE
                                   ? memory_format("set another port, or %s for any free port", any)
                                   : memory_format("set %s to an address of this machine", place->setting ? place->setting : "host");
    return error_set(error, ERROR_USAGE, "cannot listen on port %d of %s: %s; %s", place->port, place->host, strerror(reason), advice);
}

/* Listens at this address alone. */
static bool open_socket(HttpListener *listener, const HttpPlace *place, int connections, Error *error) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    const int on = 1;
    if (!socket_resolve(place->host, place->port, &address, error)) return error_recode(error, ERROR_USAGE);
    listener->socket = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->socket < 0 || setsockopt(listener->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(listener->socket, (const struct sockaddr *)&address, bytes) != 0 || listen(listener->socket, connections) != 0)
        return refuse_address(place, error);
    if (getsockname(listener->socket, (struct sockaddr *)&address, &bytes) != 0)
        return error_set(error, ERROR_INTERNAL, "cannot read the port number: %s", strerror(errno));
    listener->url = describe_url(&address);
    listener->loopback = socket_is_loopback(&address);
    return true;
}

bool http_open(HttpListener *listener, const char *command, const HttpPlace *place, int connections, Error *error) {
    *listener = (HttpListener){.host = memory_copy_string(place->host), .socket = -1};
    return open_microhttpd(listener, command, error) && open_socket(listener, place, connections, error);
}

static enum MHD_Result pass_call(void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_bytes, void **request) {
    const HttpListener *listener = context;
    (void)version;
    const HttpCall call = {connection, path, method, upload, upload_bytes, request};
    return listener->answer(listener->context, &call);
}

struct MHD_Daemon *http_start(
    HttpListener *listener, unsigned flags, HttpAnswer *answer, void *context, struct MHD_OptionItem *options, Error *error) {
    listener->answer = answer;
    listener->context = context;
    struct MHD_Daemon *server = listener->api.start_daemon(
        flags, 0, NULL, NULL, pass_call, listener, MHD_OPTION_LISTEN_SOCKET, listener->socket, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (server) listener->socket = -1;
    else error_set(error, ERROR_INTERNAL, "libmicrohttpd cannot start a server at %s", listener->url);
    return server;
}

void http_close(HttpListener *listener) {
    if (listener->socket >= 0) close(listener->socket);
    if (listener->library) dlclose(listener->library);
    free(listener->host);
    free(listener->url);
}

enum MHD_Result http_reply(
    const HttpListener *listener, struct MHD_Connection *connection, unsigned status, const char *type, const char *text) {
    static const char *const headers[][2] = {
        {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; base-uri "
                                    "'none'; form-action 'none'; frame-ancestors 'none'"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-store"},
    };
    const HttpApi *http = &listener->api;
    struct MHD_Response *response = http->create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) http->add_response_header(response, headers[i][0], headers[i][1]);
    http->add_response_header(response, "Content-Type", type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) http->add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = http->queue_response(connection, status, response);
    http->destroy_response(response);
    return result;
}
