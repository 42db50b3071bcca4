# Gives the kernels of an LLVM module for AMD the attributes that C cannot write: at most 256 threads in a block (LLVM's default of 1,024 leaves a thread a
# quarter of the registers), or what WAVE_BOUNDS (src/backend/gpu/gpu.h) says as the comment "; bounds": threads, and waves that share a SIMD.
/^define .* amdgpu_kernel / { head = $0; body = ""; threads = 256; waves = "" }
head == "" { print; next }
/asm sideeffect "; bounds / { match($0, /\(i32 [0-9]+, i32 [0-9]+\)/); split(substr($0, RSTART, RLENGTH), bounds, /[^0-9]+/); threads = bounds[3]; waves = bounds[5]; next }
{ if ($0 != head) body = body $0 "\n" }
/^}/ {
    attributes = "\"amdgpu-flat-work-group-size\"=\"1," threads "\"" (waves == "" ? "" : " \"amdgpu-waves-per-eu\"=\"" waves "," waves "\"")
    sub(/ #[0-9]+ \{$/, " " attributes "&", head)
    printf "%s\n%s", head, body
    head = ""
}
