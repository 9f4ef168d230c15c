package sqlite

import "testing"

func TestNetworkFileSystemsAreRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		magic int64
		ok    bool
	}{
		{"ext4", 0xef53, true},
		{"tmpfs", 0x01021994, true},
		{"btrfs", 0x9123683e, true},
		{"overlay", 0x794c7630, true},
		{"FUSE", 0x65735546, true},
		{"NFS", 0x6969, false},
		{"SMB", 0x517b, false},
		{"SMB2", 0xfe534d42, false},
		{"CIFS", 0xff534d42, false},
		{"CIFS in 32 signed bits", -0x00acb2be, false},
		{"9P", 0x01021997, false},
		{"AFS", 0x5346414f, false},
		{"Ceph", 0x00c36400, false},
		{"Lustre", 0x0bd00bd0, false},
	} {
		if err := checkFilesystemType(test.magic); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if err := checkFilesystem(t.TempDir() + "/x.db"); err != nil {
		t.Errorf("a temporary folder: %v", err)
	}
}
