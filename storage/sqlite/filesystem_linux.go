package sqlite

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// networkFilesystems are those on which SQLite's locks or its shared memory cannot be trusted, by their magic number.
// FUSE is not among them: most of it is local, and what lies behind cannot be told.
var networkFilesystems = map[int64]string{
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB_SUPER_MAGIC:  "SMB",
	unix.SMB2_SUPER_MAGIC: "SMB",
	unix.CIFS_SUPER_MAGIC: "CIFS",
	unix.V9FS_MAGIC:       "9P",
	unix.AFS_SUPER_MAGIC:  "AFS",
	unix.AFS_FS_MAGIC:     "AFS",
	unix.CEPH_SUPER_MAGIC: "Ceph",
	unix.CODA_SUPER_MAGIC: "Coda",
	unix.NCP_SUPER_MAGIC:  "NCP",
	0x0bd00bd0:            "Lustre",
}

// checkFilesystem refuses a file on a network file system.
func checkFilesystem(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		return fmt.Errorf("look at file system: %w", err)
	}
	return checkFilesystemType(int64(fs.Type)) //nolint:unconvert // other platforms have 32 bits
}

func checkFilesystemType(magic int64) error {
	// Some platforms keep the number in a signed 32-bit word.
	if name, ok := networkFilesystems[magic&0xffffffff]; ok {
		return fmt.Errorf("the file is on a network file system (%s), where SQLite's locks protect nothing: move it to a local disk", name)
	}
	return nil
}
