"""The tokenizer of smelt in Python, for the scripts that compare it with its peers: compiles src/token into a shared library and calls it."""
import ctypes
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = [os.path.join(folder, name) for folder in ("src/token", "src/gguf") for name in sorted(os.listdir(os.path.join(ROOT, folder))) if name.endswith(".c")]
SOURCES += ["src/base/%s.c" % name for name in ("error", "file", "log", "memory", "wrap")]
LIBRARIES = ["-lpcre2-8", "-ljansson", "-lutf8proc", "-lxxhash"]
ADD_SPECIAL, PLAIN_SPECIAL, CONTINUED = 1, 2, 4


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 2048)]


class TokenIds(ctypes.Structure):
    _fields_ = [("items", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Decoder(ctypes.Structure):
    _fields_ = [("tokenizer", ctypes.c_void_p), ("skip_special", ctypes.c_bool), ("started", ctypes.c_bool), ("strip", ctypes.c_int)]


class Training(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("vocabulary", ctypes.c_int32), ("minimum_count", ctypes.c_int64)]


def build(folder):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "libtokenizer.so")
    command = ["cc", "-std=gnu17", "-O2", "-g", "-D_GNU_SOURCE", "-Isrc", "-fopenmp", "-shared", "-fPIC", "-o", path] + SOURCES + LIBRARIES
    subprocess.run(command, check=True, cwd=ROOT)
    library = ctypes.CDLL(path)
    pointer = ctypes.c_void_p
    for name, result, arguments in [
        ("tokenizer_open", pointer, [ctypes.c_char_p, ctypes.POINTER(Error)]),
        ("tokenizer_free", None, [pointer]),
        ("tokenizer_vocabulary", ctypes.c_int32, [pointer]),
        ("tokenizer_end_of_text", ctypes.c_int32, [pointer]),
        ("tokenizer_encoder_open", pointer, [pointer]),
        ("tokenizer_encoder_free", None, [pointer]),
        ("tokenizer_encode", ctypes.c_bool, [pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.POINTER(TokenIds), ctypes.POINTER(Error)]),
        ("tokenizer_safe_cut", ctypes.c_size_t, [pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]),
        ("tokenizer_decoder", Decoder, [pointer, ctypes.c_bool]),
        ("tokenizer_decode", pointer, [ctypes.POINTER(Decoder), ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t)]),
        ("tokenizer_trainer_open", pointer, [ctypes.POINTER(Training), ctypes.POINTER(Error)]),
        ("tokenizer_trainer_add", ctypes.c_bool, [pointer, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Error)]),
        ("tokenizer_trainer_finish", ctypes.c_bool, [pointer, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(Error)]),
        ("tokenizer_trainer_free", None, [pointer]),
    ]:
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


def check(good, error):
    if not good:
        raise RuntimeError(error.message.decode(errors="replace"))
    return good


class Tokenizer:
    """One tokenizer and one encoder, never freed: scripts end soon."""

    def __init__(self, library, path):
        error = Error()
        self.library = library
        self.tokenizer = check(library.tokenizer_open(path.encode(), error), error)
        self.encoder = library.tokenizer_encoder_open(self.tokenizer)
        self.ids = TokenIds()

    def encode_count(self, text, flags=0):
        error = Error()
        self.ids.count = 0
        check(self.library.tokenizer_encode(self.encoder, text, len(text), flags, self.ids, error), error)
        return self.ids.count

    def encode(self, text, flags=0):
        """Bytes to a list of ids."""
        count = self.encode_count(text, flags)
        return self.ids.items[:count] if count else []

    def safe_cut(self, text, wanted):
        return self.library.tokenizer_safe_cut(self.tokenizer, text, len(text), wanted)

    def decode(self, ids, skip_special=False):
        decoder = self.library.tokenizer_decoder(self.tokenizer, skip_special)
        size, out = ctypes.c_size_t(), []
        for token in ids:
            address = self.library.tokenizer_decode(decoder, token, size)
            out.append(ctypes.string_at(address, size.value))
        return b"".join(out)


def train(library, texts, path, pattern, vocabulary):
    """Trains on a list of bytes; the vocabulary reached."""
    error, learned = Error(), ctypes.c_int32()
    training = Training(pattern.encode(), vocabulary, 1)
    trainer = check(library.tokenizer_trainer_open(training, error), error)
    for text in texts:
        check(library.tokenizer_trainer_add(trainer, text, len(text), error), error)
    check(library.tokenizer_trainer_finish(trainer, path.encode(), learned, error), error)
    library.tokenizer_trainer_free(trainer)
    return learned.value
